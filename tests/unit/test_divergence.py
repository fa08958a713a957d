"""The watch on the loss, which checkpoints a roll-back abandons, which batches it skips and which checkpoints stay."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.config import LossLimit, RollBack, parse
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.divergence import WINDOW, LossWatch
from resnetboost_trainer.failures import Diverged
from resnetboost_trainer.optim import schedule
from support.smallcheckpoints import manifest, save
from support.trainerconfig import GOOD

ALONE = Communicator(0, 1)


def watch(for_steps: int = 3, above: float = 3.0, untrained: float = math.log(10)) -> LossWatch:
    return LossWatch(LossLimit(loss_above=above, for_steps=for_steps), untrained, ALONE)


def first_divergence(found: LossWatch, losses: list[float], first: int = 0) -> int | None:
    """The step that diverges, counted from 1; the watch has seen those before the step of index `first`."""
    for step, loss in enumerate(losses[first:], start=first + 1):
        try:
            found.check(step, float(np.float32(loss)), "")
        except Diverged:
            return step
    return None


def test_a_loss_above_its_median_for_so_many_steps_diverges_and_says_by_how_much() -> None:
    found = watch()
    for step in range(1, 21):
        found.check(step, 0.5, "at learning rate 1; lower it")
    found.check(21, 1.6, "")
    found.check(22, 1.7, "")
    with pytest.raises(Diverged, match=r"1\.8, for 3 steps in a row above lossAbove: 3 times the running median 0\.5"):
        found.check(23, 1.8, "")


def test_spikes_that_pass_do_not_diverge() -> None:
    assert first_divergence(watch(), [0.5] * 20 + [9, 9, 0.5, 9, 9, 1.5] * 20) is None


def test_a_long_divergence_does_not_become_its_own_median() -> None:
    assert first_divergence(watch(2 * WINDOW), [0.5] * 20 + [9.0] * 300) == 20 + 2 * WINDOW


def test_a_training_that_is_ruined_from_its_first_step_on_is_found() -> None:
    assert first_divergence(watch(5), [30.0] * 50) == 5


def test_the_loss_of_an_untrained_network_is_the_yardstick_of_the_first_steps() -> None:
    assert first_divergence(watch(5, untrained=20.0), [30.0] * 50) is None
    assert first_divergence(watch(5, untrained=9.0), [30.0] * 50) == 5


def test_a_training_that_learns_nothing_does_not_diverge() -> None:
    assert first_divergence(watch(), [2.4] * 500) is None


LOSSES = st.lists(st.sampled_from([0.1, 0.3, 0.31, 0.9, 1.2, 2.3, 6.8, 7.5, 80.0]), min_size=1, max_size=150)


@settings(deadline=None, max_examples=60)
@given(LOSSES, st.integers(1, 6), st.data())
def test_detection_is_the_same_whatever_checkpoint_it_resumes_from(
    losses: list[float], for_steps: int, data: st.DataObject
) -> None:
    undisturbed = first_divergence(watch(for_steps), losses)
    last = len(losses) if undisturbed is None else undisturbed - 1
    saved = data.draw(st.integers(0, last))
    before = watch(for_steps)
    assert first_divergence(before, losses[:saved]) is None
    after = watch(for_steps)
    after.restore(before.snapshot())
    assert first_divergence(after, losses, saved) == undisturbed


@pytest.mark.parametrize("contents", [None, {}, {"losses.safetensors": {"losses": np.ones((3, 200), np.float32)}}])
def test_a_checkpoint_without_the_watch_or_with_a_strange_one_is_restored(contents: object) -> None:
    watch().restore(contents)  # type: ignore[arg-type]


def back(attempt: int, at_most: int, skip_to: int | None, factor: float = 0.5, stage: str = "base") -> RollBack:
    return RollBack(
        attempt=attempt,
        stage=stage,
        from_step=at_most + 50,
        at_most_step=at_most,
        learning_rate_factor=factor,
        skip_to_batch=skip_to,
    )


def test_a_roll_back_abandons_what_was_saved_after_its_step_but_nothing_newer() -> None:
    branch = Branch((back(2, 100, 150),))
    found = {(step, attempt): branch.usable(step, attempt) for step in (100, 101) for attempt in (0, 2, 3)}
    assert found == {(100, 0): True, (100, 2): True, (100, 3): True, (101, 0): False, (101, 2): False, (101, 3): True}


def test_the_batches_up_to_the_fault_are_skipped_from_any_checkpoint_before_it() -> None:
    branch = Branch((back(0, 100, 150),))
    assert branch.skipped_batches(manifest(80), "uid") == 70
    assert branch.skipped_batches(None, "uid") == 150
    assert branch.skipped_batches(manifest(80, attempt=1, skipped_batches=70), "uid") == 70, "a restart since then"


def test_a_second_roll_back_skips_from_its_own_fault_on_whichever_branch_it_resumes() -> None:
    """The first one skipped 70 batches, so that the fault of step 120 was in batch 190."""
    branch = Branch((back(0, 100, 150), back(1, 70, 190)))
    assert branch.skipped_batches(manifest(60), "uid") == 130
    assert branch.skipped_batches(manifest(70, attempt=1, skipped_batches=70), "uid") == 120
    assert branch.skipped_batches(manifest(70, attempt=2, skipped_batches=120), "uid") == 120


def test_without_skipping_the_order_stays_where_the_checkpoint_has_it() -> None:
    assert Branch((back(0, 100, None),)).skipped_batches(manifest(80, skipped_batches=7), "uid") == 7


def test_another_jobs_checkpoint_is_before_every_roll_back() -> None:
    assert Branch((back(0, 100, 150),)).skipped_batches(manifest(80, attempt=9), "ours") == 70


def test_roll_backs_of_other_stages_change_nothing() -> None:
    config = parse(GOOD)
    slower = parse(GOOD | {"rollBacks": [as_given(back(0, 9, 9)), as_given(back(1, 9, 9, 0.5, "other"))]})
    assert schedule.rate(slower, 40, 22) == schedule.rate(config, 40, 22) / 2


def as_given(found: RollBack) -> dict[str, object]:
    return {
        "attempt": found.attempt,
        "stage": found.stage,
        "fromStep": found.from_step,
        "atMostStep": found.at_most_step,
        "learningRateFactor": found.learning_rate_factor,
    }


@pytest.mark.parametrize(
    ("every", "keep", "back_steps"), [(10, 3, 50), (10, 1, 50), (500, 3, 50), (7, 2, 100), (1, 1, 9)]
)
def test_there_is_always_a_checkpoint_from_before_the_trouble_and_not_much_older(
    every: int, keep: int, back_steps: int, tmp_path: Path
) -> None:
    for step in range(0, 40 * every, every):
        store.prune(tmp_path, "uid", "base", 0, keep, save(tmp_path, step), back_steps)
        left = [store.step_of(path) for path in store.candidates(tmp_path, "uid", "base")]
        assert left[:keep] == list(range(step, -1, -every))[:keep]
        assert len(left) <= keep + 2
        old = [found for found in left if found <= step + 1 - back_steps]
        assert old or step + 1 < back_steps or left[-1] == 0
        if step > 3 * max(back_steps, every):
            assert max(old) >= step - 2 * back_steps - keep * every


def test_pruning_removes_the_abandoned_branch_and_keeps_what_it_grew_from(tmp_path: Path) -> None:
    for step in (80, 100, 120, 140):
        save(tmp_path, step)
    branch = Branch((back(0, 100, 150),))
    store.prune(tmp_path, "uid", "base", 1, 2, save(tmp_path, 110, attempt=1), None, branch.usable)
    left = sorted(f"{path.parent.name}/{path.name}" for path in tmp_path.rglob("step-*"))
    assert left == ["attempt-0/step-00000100", "attempt-1/step-00000110"]
