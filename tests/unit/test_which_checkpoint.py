"""--which: best, last, averaged or a step of a run's folder, and what it refuses."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from resnetboost_api.status import EarlyStop
from resnetboost_trainer.checkpoint import lineage, model_card, store, trained
from resnetboost_trainer.checkpoint.evaluations import BestMark, evaluated
from resnetboost_trainer.checkpoint.store import Arrays
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch
from support import smallcheckpoints

MODEL, AVERAGE = "model.safetensors", "ema.safetensors"


def weights() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    shapes = arch.parameters("resnet20", 10, 1)
    return {key: generator.uniform(0.1, 1, shape).astype(np.float32) for key, shape in shapes.items()}


CONTENTS: dict[str, Arrays] = {MODEL: weights()}


def save_best(root: Path, step: int, top1: float, contents: dict[str, Arrays] = CONTENTS, **changes: Any) -> Path:
    mark = BestMark(metric="top1", evaluation=evaluated(step, top1, 0.99, 0.5, averaged=AVERAGE in contents))
    ours = smallcheckpoints.manifest(step, best=mark, **changes)
    directory = store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt)
    return store.write(directory, ours, contents, "best")[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with checkpoints of the steps 20, 40 and 60, the best one of step 22, and an earlier stage."""
    root = tmp_path / "checkpoints"
    save_best(root, 99, 0.99, stage="early")
    smallcheckpoints.save(root, 99, CONTENTS, stage="early")
    save_best(root, 22, 0.9)
    save_best(root, 44, 0.8)
    for step in (20, 40, 60):
        smallcheckpoints.save(root, step, CONTENTS)
    return tmp_path


def path(run: Path, which: str | None, weights: Any = None) -> str:
    return trained.read(run, weights=weights, chosen=which).path.name


@pytest.mark.parametrize(
    ("which", "name"),
    [
        (None, "step-00000060"),
        ("last", "step-00000060"),
        ("best", "best-00000022"),
        ("40", "step-00000040"),
        ("00000040", "step-00000040"),
        ("44", "best-00000044"),
    ],
)
def test_it_selects_one_of_the_stage_that_was_trained_last(which: str | None, name: str, run: Path) -> None:
    assert path(run, which) == name


def set_clock(place: Path, written: float) -> None:
    """Let the checkpoint have been written at that time."""
    changed = msgspec.structs.replace(store.load_manifest(place), written=written)
    (place / store.MANIFEST).write_bytes(msgspec.json.encode(changed))


def test_a_clock_that_was_set_back_makes_no_older_checkpoint_the_newest(tmp_path: Path) -> None:
    for attempt, step, written in ((0, 20, 7200.0), (0, 23, 3600.0), (1, 21, 60.0)):
        set_clock(smallcheckpoints.save(tmp_path, step, CONTENTS, attempt=attempt), written)
        assert path(tmp_path, None) == path(tmp_path, "last") == f"step-{step:08d}"
    set_clock(smallcheckpoints.save(tmp_path, 9, CONTENTS, stage="next"), 7201.0)
    assert path(tmp_path, "last") == "step-00000009", "of two stages the one that was written last"
    assert refusal(tmp_path, "23").startswith("--which 23: stage next in ")


def test_the_best_is_by_the_metric_of_the_newest_one_whatever_its_clock(tmp_path: Path) -> None:
    first = BestMark(metric="top1", evaluation=evaluated(20, 0.9, 0.99, 0.5, averaged=False))
    second = BestMark(metric="loss", evaluation=evaluated(40, 0.8, 0.99, 0.4, averaged=False))
    for step, mark, written in ((20, first, 7200.0), (40, second, 60.0)):
        ours = smallcheckpoints.manifest(step, best=mark)
        directory = store.attempt_directory(tmp_path, ours.job_uid, ours.stage, ours.attempt)
        set_clock(store.write(directory, ours, CONTENTS, "best")[0], written)
    assert path(tmp_path, "best") == "best-00000040"


def test_another_stage_is_selected_by_its_folder(run: Path) -> None:
    assert path(run / "checkpoints/uid/early", "best") == "best-00000099"


def test_a_damaged_one_is_passed_over(run: Path) -> None:
    (run / "checkpoints/uid/base/attempt-0/best-00000022" / MODEL).write_bytes(b"damaged")
    assert path(run, "best") == "best-00000044"


def test_the_best_is_named_in_the_description_and_in_the_card(run: Path) -> None:
    found = trained.read(run, chosen="best")
    assert found.describe().endswith("step 22 of stage base of digits, the best by top1 (0.9)")
    card = model_card.text(model_card.facts(found, None))
    assert "best:\n    metric: top1\n    value: 0.9\n    step: 22" in card
    assert "90.00% | 99.00% | 0.5000" in card, "the evaluation is in the manifest, whatever metrics.csv says"


def test_an_average_is_selected_with_its_checkpoint(run: Path) -> None:
    smallcheckpoints.save(run / "checkpoints", 80, CONTENTS | {AVERAGE: weights()})
    found = trained.read(run, chosen="averaged")
    assert (found.path.name, found.averaged) == ("step-00000080", True)
    assert not trained.read(run, weights="trained", chosen="last").averaged


def refusal(source: Path, which: str, weights: Any = None) -> str:
    with pytest.raises(ConfigError) as caught:
        trained.read(source, weights=weights, chosen=which)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_step_that_is_not_there_is_answered_with_those_that_are(run: Path) -> None:
    expected = "has no checkpoint of that step; there are those of steps 20, 22, 40, 44, 60"
    assert refusal(run, "41").endswith(expected)
    for step in range(100, 130):
        smallcheckpoints.save(run / "checkpoints", step, CONTENTS)
    assert refusal(run, "41").endswith("those of steps 20, 22, 40, 44, 60, 100, ..., 124, 125, 126, 127, 128, 129")


def test_a_run_without_a_best_one_is_answered_with_a_remedy(tmp_path: Path) -> None:
    smallcheckpoints.save(tmp_path, 20, CONTENTS)
    remedy = "train with checkpoint.best, such as {metric: top1}, or use --which last"
    assert refusal(tmp_path, "best") == f"--which best: stage base in {tmp_path} kept no best checkpoint; {remedy}"
    assert "kept no average" in refusal(tmp_path, "averaged")
    (tmp_path / "empty").mkdir()
    for which in ("last", "20"):
        assert "there is no complete checkpoint in it" in refusal(tmp_path / "empty", which)


@pytest.mark.parametrize("which", ["Best", "-1", "1e3", "٣", "", "../..", "9" * 19, "best\n"])
def test_a_word_that_it_does_not_know_is_refused(which: str, run: Path) -> None:
    assert "is neither best, last, averaged nor a step" in refusal(run, which)


def test_it_says_nothing_about_a_single_checkpoint(run: Path) -> None:
    one = run / "checkpoints/uid/base/attempt-0/step-00000020"
    for source in (one, one / MODEL):
        assert "leave it out" in refusal(source, "best")
    assert "leave one of them out" in refusal(run, "averaged", "trained")


def test_an_early_end_is_in_the_card_of_each_checkpoint_of_the_stage(run: Path) -> None:
    stop = EarlyStop(step=60, reason="TargetReached", message="top1 0.99 reached the target 0.9")
    smallcheckpoints.save(run / "checkpoints", 60, CONTENTS, stopped_early=stop)
    for which in ("best", "last"):
        found = trained.read(run, chosen=which)
        assert found.manifest is not None
        assert lineage.stages(found.path, found.manifest)[-1].ended == stop.message
        assert f"Stage base ended early: {stop.message}." in model_card.text(model_card.facts(found, None))
