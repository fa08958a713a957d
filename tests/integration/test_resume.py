"""Where a stage resumes: own checkpoint, an earlier job's under each `checkpoint.resume` rule, or another stage's."""

import shutil
from pathlib import Path
from typing import Any, Literal

import mindspore
import msgspec
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.checkpoint import resume, snapshots, store
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.checkpoint.pretrained import Read
from resnetboost_trainer.checkpoint.resume import Source
from resnetboost_trainer.checkpoint.state import MODEL, OPTIMIZER, State, shard
from resnetboost_trainer.checkpoint.store import Arrays
from resnetboost_trainer.config import Config, RollBack, StartFrom
from resnetboost_trainer.data import rng
from resnetboost_trainer.data.rng import BY_SEED_ALONE
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import schedule_change
from resnetboost_trainer.failures import ConfigError, StorageError
from support.smallcheckpoints import keep, manifest, save, tree
from support.trainerconfig import GOOD

Rule = Literal["Never", "IfPresent", "Required"]
EVERY_RULE: list[Rule] = ["Never", "IfPresent", "Required"]
ALONE = Communicator(0, 1)
BEFORE = StartFrom(stage="base")


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> None:
    """MindSpore must know the device before it computes anything in this process; later tests could not set it."""
    mindspore.set_device("CPU")


def fresh() -> State:
    network = nn.BatchNorm1d(2)
    return State(network, [Parameter(Tensor(np.zeros(2, np.float32)), name="momentum")], ALONE)


def contents(value: float) -> dict[str, Arrays]:
    """Contents of a checkpoint of the small network, with every number equal to the value."""
    state = fresh()
    two = np.full(2, value, np.float32)
    statistics = dict.fromkeys(state.statistics, two)
    weights = dict.fromkeys(state.weights, two)
    return {MODEL: weights | statistics, OPTIMIZER: {"momentum": two}, shard(0): statistics}


def earlier_job(root: Path, step: int, value: float, **changes: Any) -> Path:
    return save(root, step, contents(value), **{"job_uid": "earlier"} | changes)


def own(root: Path, step: int, value: float, **changes: Any) -> Path:
    return save(root, step, contents(value), **{"job_uid": "ours"} | changes)


def source(root: Path | None, rule: Rule = "Never", attempt: int = 1, **changes: Any) -> Source:
    ours = manifest(0, job_uid="ours", attempt=attempt, **changes.pop("ours", {}))
    defaults = {"start_from": None, "total": 88, "taking_over": schedule_change.warn}
    return Source(root=root, ours=ours, rule=rule, **defaults | changes)


def begin(root: Path | None, rule: Rule, attempt: int = 1, **changes: Any) -> tuple[int, float]:
    """(steps done, value of the weights) at which an attempt of our job starts."""
    state = fresh()
    step = resume.begin(source(root, rule, attempt, **changes), state, ALONE).step
    values = {float(value) for parameter in state.weights.values() for value in parameter.asnumpy()}
    return step, values.pop() if len(values) == 1 else 0.0


FRESH = (0, 0.0)  # a new network's weights are not all equal


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_restart_resumes_from_its_own_checkpoint_under_every_rule(rule: Rule, tmp_path: Path) -> None:
    own(tmp_path, 20, 0.5)
    earlier_job(tmp_path, 80, 0.25)
    assert begin(tmp_path, rule) == (20, 0.5)


def test_never_ignores_an_earlier_job(tmp_path: Path) -> None:
    earlier_job(tmp_path, 40, 0.25)
    before = tree(tmp_path)
    assert begin(tmp_path, "Never") == FRESH
    assert tree(tmp_path) == before


@pytest.mark.parametrize("rule", ["IfPresent", "Required"])
def test_an_earlier_jobs_checkpoint_becomes_our_own_and_stays_what_it_was(rule: Rule, tmp_path: Path) -> None:
    theirs = earlier_job(tmp_path, 40, 0.25)
    before = tree(theirs)
    assert begin(tmp_path, rule, attempt=0) == (40, 0.25)
    assert tree(theirs) == before
    shutil.rmtree(tmp_path / "earlier")
    adopted = store.newest(tmp_path, "ours", "base", [])
    assert adopted is not None
    assert set(adopted.contents) == {MODEL, OPTIMIZER, shard(0)}
    assert begin(tmp_path, "Required", attempt=1) == (40, 0.25), "a restart finds it although that job is gone"


def test_if_present_starts_fresh_without_a_checkpoint(tmp_path: Path) -> None:
    assert begin(tmp_path, "IfPresent") == FRESH
    assert begin(None, "IfPresent") == FRESH


@pytest.mark.parametrize("kept", [True, False], ids=["on an empty volume", "without a volume"])
def test_required_refuses_to_start_fresh(kept: bool, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Required, but no earlier job default/digits left .* stage base.*; set "):
        begin(tmp_path if kept else None, "Required")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ours": {"seed": 7}}, "its seed is 0, this job's is 7"),
        ({"ours": {"model": "resnet50/10/1"}}, "its model is 'resnet20/10/1', this job's is 'resnet50/10/1'"),
        ({"ours": {"dataset": "other"}}, "its dataset is 'digits', this job's is 'other'"),
        ({"ours": {"steps_per_epoch": 11}}, "its steps_per_epoch is 22, this job's is 11"),
        (
            {"ours": {"local_batch_size": 65}},
            "its global batch is 64 (1 rank x localBatchSize 64), this job's is 65 (1 rank x localBatchSize 65)",
        ),
        ({"total": 22}, "it is of step 40, this stage ends at 22"),
    ],
    ids=["seed", "model", "data set", "steps of an epoch", "batch", "fewer epochs"],
)
@pytest.mark.parametrize("rule", ["IfPresent", "Required"])
def test_a_mismatching_checkpoint_is_refused_with_the_remedy(
    rule: Rule, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    earlier_job(tmp_path, 40, 0.25)
    with pytest.raises(ConfigError) as caught:
        begin(tmp_path, rule, **changes)
    for part in (f"checkpoint.resume is {rule}", "step-00000040 of the earlier job default/digits (earlier)", says):
        assert part in str(caught.value)
    assert str(caught.value).endswith("restore that setting, or set checkpoint.resume to Never to start over")
    assert not (tmp_path / "ours").exists()


def parts(count: int) -> dict[str, Any]:
    """Micro-batch settings in a manifest's config."""
    return {"config": {"accumulationSteps": count}}


TWO_RANKS = {"world_size": 2, "local_batch_size": 32}


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (TWO_RANKS | parts(1), {"local_batch_size": 65}, "64 (2 ranks x localBatchSize 32), this job's is 65 (1 rank"),
        (TWO_RANKS, {"local_batch_size": 65}, "64 (2 ranks x localBatchSize 32), this job's is 65 (1 rank x "),
        (TWO_RANKS | parts(1), TWO_RANKS | parts(2), "64 (2 ranks x localBatchSize 32), this job's is 128 (2 ranks "),
        (parts(2), parts(1), "128 (1 rank x localBatchSize 64 x accumulationSteps 2), this job's is 64 (1 rank x "),
    ],
    ids=["ranks and batch", "of before micro batches were told", "more accumulation", "less accumulation"],
)
def test_a_step_of_another_global_batch_is_no_step_of_this_stage(
    theirs: dict[str, Any], ours: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """All have the 22 steps of an epoch of digits, or claim to."""
    own(tmp_path, 20, 0.5, **theirs)
    with pytest.raises(ConfigError) as caught:
        begin(tmp_path, "Never", ours=ours)
    told = str(caught.value)
    assert f"its global batch is {says}" in told
    assert told.endswith("; restore that setting")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (TWO_RANKS | parts(1), {"world_size": 1, "local_batch_size": 64} | parts(1)),
        (TWO_RANKS | parts(1), {"world_size": 1, "local_batch_size": 16} | parts(4)),
        (TWO_RANKS, TWO_RANKS | parts(3)),
    ],
    ids=["other ranks", "other micro batches", "of before micro batches were told"],
)
def test_the_same_global_batch_may_be_made_in_another_way(
    theirs: dict[str, Any], ours: dict[str, Any], tmp_path: Path
) -> None:
    own(tmp_path, 20, 0.5, **theirs)
    assert begin(tmp_path, "Never", ours=ours) == (20, 0.5)


@pytest.mark.parametrize("step", [2**24 + 1, 10**8 + 1, 2**53 + 1])
def test_a_step_is_exact_however_large(step: int, tmp_path: Path) -> None:
    own(tmp_path, step - 1, 0.25)
    own(tmp_path, step, 0.5)
    assert begin(tmp_path, "Never", total=2**60) == (step, 0.5)


def test_never_ignores_a_mismatching_checkpoint(tmp_path: Path) -> None:
    earlier_job(tmp_path, 40, 0.25)
    assert begin(tmp_path, "Never", ours={"seed": 7}) == FRESH


@pytest.mark.parametrize(("rule", "begins"), [("Never", (0, 0.5)), ("IfPresent", (20, 0.25)), ("Required", (20, 0.25))])
def test_an_earlier_jobs_progress_in_a_later_stage_beats_our_stage_before_if_the_rule_says_so(
    rule: Rule, begins: tuple[int, float], tmp_path: Path
) -> None:
    own(tmp_path, 88, 0.5)
    earlier_job(tmp_path, 88, 0.125)
    earlier_job(tmp_path, 20, 0.25, stage="fine")
    assert begin(tmp_path, rule, ours={"stage": "fine"}, start_from=BEFORE) == begins


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_our_own_stage_before_is_enough_for_a_stage_that_no_earlier_job_reached(rule: Rule, tmp_path: Path) -> None:
    own(tmp_path, 88, 0.5)
    earlier_job(tmp_path, 88, 0.125)
    assert begin(tmp_path, rule, ours={"stage": "fine"}, start_from=BEFORE) == (0, 0.5)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_an_earlier_jobs_stage_before_is_not_ours(rule: Rule, tmp_path: Path) -> None:
    earlier_job(tmp_path, 88, 0.125)
    with pytest.raises(StorageError, match="stage fine begins where stage base ended"):
        begin(tmp_path, rule, ours={"stage": "fine"}, start_from=BEFORE)


def test_a_stage_that_an_earlier_job_finished_hands_its_weights_to_our_next_one(tmp_path: Path) -> None:
    earlier_job(tmp_path, 88, 0.25)
    assert begin(tmp_path, "Required", attempt=0) == (88, 0.25)
    assert begin(tmp_path, "Required", attempt=1, ours={"stage": "fine"}, start_from=BEFORE) == (0, 0.25)


OTHER = StartFrom(stage="base", job_name="sampling")


def other_job(root: Path, step: int, value: float, **changes: Any) -> Path:
    return save(root, step, contents(value), **{"job_uid": "theirs", "job_name": "sampling", "seed": 7} | changes)


@pytest.mark.parametrize("rule", ["Never", "IfPresent"])
def test_a_stage_starts_from_the_furthest_checkpoint_of_another_job(rule: Rule, tmp_path: Path) -> None:
    other_job(tmp_path, 80, 0.125)
    (other_job(tmp_path, 99, 0.5) / MODEL).write_text("not the model")
    before = tree(tmp_path / "theirs")
    assert begin(tmp_path, rule, attempt=0, ours={"stage": "fine"}, start_from=OTHER) == (0, 0.125)
    assert tree(tmp_path / "theirs") == before


def settings(epochs: int, **rate: Any) -> dict[str, Any]:
    config = GOOD | {"epochs": epochs, "learningRate": GOOD["learningRate"] | rate}
    return {"config": msgspec.to_builtins(msgspec.convert(config, Config))}


@pytest.mark.parametrize(
    ("before", "now", "step"),
    [
        (settings(3), settings(6), 24),  # the first one after warm-up that is below its peak
        (settings(3, scheduleEpochs=6), settings(6), None),
        (settings(3, schedule="Constant"), settings(6, schedule="Constant"), None),
        (settings(3, schedule="Constant", peak=0.2), settings(3, schedule="Constant"), 1),
        ({}, settings(6), None),
    ],
    ids=["laid out over more", "the same layout", "constant", "another peak", "of before configs were kept"],
)
def test_resuming_with_another_schedule_is_logged(
    before: dict[str, Any], now: dict[str, Any], step: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier_job(tmp_path, 40, 0.25, **before)
    assert begin(tmp_path, "Required", ours=now) == (40, 0.25)
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [f"learning rate of step {step} was" in message for message in told] == ([] if step is None else [True])


def lineage(root: Path | None, rule: Rule = "Never", **changes: Any) -> int:
    return resume.begin(source(root, rule, **changes), fresh(), ALONE).lineage


def test_a_first_stage_draws_by_the_seed_alone_and_one_after_another_does_not(tmp_path: Path) -> None:
    assert lineage(tmp_path) == BY_SEED_ALONE
    own(tmp_path, 88, 0.5)
    fine, other = (lineage(tmp_path, ours={"stage": name}, start_from=BEFORE) for name in ("fine", "other"))
    assert len({fine, other, BY_SEED_ALONE}) == 3
    assert lineage(tmp_path, ours={"stage": "fine"}, start_from=BEFORE) == fine


def of_weights(found: int | None, fingerprint: str = "a/Keep") -> Any:
    """Settings of `model.weights.path`."""
    return lambda: Read(dict(contents(0.5)[MODEL]), fingerprint, found)


def test_weights_of_a_checkpoint_have_seen_its_batches_and_those_of_a_plain_file_none(tmp_path: Path) -> None:
    assert lineage(None, weights=of_weights(None)) == BY_SEED_ALONE
    assert lineage(None, weights=of_weights(BY_SEED_ALONE)) == rng.descended(BY_SEED_ALONE, "base")
    begun = resume.begin(source(tmp_path, attempt=0, weights=of_weights(7)), fresh(), ALONE)
    assert begun[:3] == (0, rng.descended(7, "base"), "a/Keep")
    noted = resume.resumed(source(tmp_path))
    assert noted is not None
    assert (noted.lineage, noted.weights) == begun[1:3], "what it saved when it began does not say so"
    again = source(tmp_path, weights=of_weights(9), ours={"weights": "a/Keep"})
    assert resume.begin(again, fresh(), ALONE) == begun, "it has begun, and reads them no more"


def test_another_schedule_is_logged_once_and_never_fails_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = msgspec.to_builtins(msgspec.convert(GOOD, Config, strict=False))
    damaged = ours["learningRate"] | {"schedule": "Step", "gamma": 1e308, "milestones": [0, 0]}
    earlier_job(tmp_path, 40, 0.25, config=ours | {"epochs": 10})
    earlier_job(tmp_path, 20, 0.25, stage="other", config=ours | {"learningRate": damaged})
    for stage, step, said in (("base", 40, 1), ("other", 20, 0)):
        caplog.clear()
        again = source(tmp_path, "Required", 0, ours={"config": ours, "stage": stage})
        assert resume.resumed(again) is not None
        assert resume.begin(again, fresh(), ALONE).step == step
        assert caplog.text.count("were made by another schedule") == said


def test_a_stage_keeps_the_lineage_it_began_with(tmp_path: Path) -> None:
    own(tmp_path, 88, 0.5)
    own(tmp_path, 20, 0.5, stage="fine")  # by a trainer of the versions where all stages made the same random draws
    own(tmp_path, 20, 0.5, stage="other", lineage=12345)
    assert lineage(tmp_path, ours={"stage": "fine"}, start_from=BEFORE) == BY_SEED_ALONE
    assert lineage(tmp_path, ours={"stage": "other"}, start_from=BEFORE) == 12345


def test_an_earlier_jobs_lineage_is_kept_with_its_checkpoint(tmp_path: Path) -> None:
    earlier_job(tmp_path, 20, 0.25, stage="fine", lineage=12345)
    for attempt in (0, 1):
        assert lineage(tmp_path, "Required", attempt=attempt, ours={"stage": "fine"}, start_from=BEFORE) == 12345
        shutil.rmtree(tmp_path / "earlier", ignore_errors=True)


def test_a_stage_that_goes_on_in_another_job_under_the_same_name_draws_anew(tmp_path: Path) -> None:
    other_job(tmp_path, 88, 0.5)
    again = lineage(tmp_path, attempt=0, start_from=OTHER)
    assert again not in (BY_SEED_ALONE, rng.descended(again, "base"))
    assert lineage(tmp_path, attempt=1, start_from=OTHER) == again, "what it saved when it began does not say so"


def test_among_jobs_of_that_name_the_one_that_saved_last_is_started_from(tmp_path: Path) -> None:
    other_job(tmp_path, 80, 0.125, job_uid="deleted since")
    other_job(tmp_path, 40, 0.25)
    assert begin(tmp_path, "Never", start_from=OTHER) == (0, 0.25)


def test_a_stage_that_started_from_another_job_needs_it_no_more(tmp_path: Path) -> None:
    other_job(tmp_path, 40, 0.25)
    assert begin(tmp_path, "Never", attempt=0, start_from=OTHER, ours={"basis": "of those"}) == (0, 0.25)
    other_job(tmp_path, 80, 0.5)
    assert begin(tmp_path, "Never", attempt=1, start_from=OTHER) == (0, 0.25), "it went on"
    shutil.rmtree(tmp_path / "theirs")
    assert begin(tmp_path, "Never", attempt=2, start_from=OTHER) == (0, 0.25), "it was deleted"
    again = resume.resumed(source(tmp_path, attempt=2, start_from=OTHER))
    assert again is not None
    assert (again.job_uid, again.attempt, again.step, again.basis) == ("ours", 0, 0, "of those")


def test_a_stage_may_start_from_an_earlier_job_of_our_name_but_not_itself(tmp_path: Path) -> None:
    start = StartFrom(stage="base", job_name="digits")
    own(tmp_path, 80, 0.5)
    earlier_job(tmp_path, 40, 0.25)
    assert begin(tmp_path, "Never", ours={"stage": "fine"}, start_from=start) == (0, 0.25)


@pytest.mark.parametrize(
    "changes",
    [{"job_name": "another"}, {"job_namespace": "another"}, {"stage": "another"}],
    ids=["another name", "another namespace", "another stage"],
)
def test_without_a_checkpoint_of_that_job_the_field_and_the_remedy_are_told(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    other_job(tmp_path, 40, 0.25, **changes)
    expected = r"stage fine: startFrom.jobName is sampling, but no job default/sampling left .* stage base.*; set "
    with pytest.raises(StorageError, match=expected):
        begin(tmp_path, "Never", ours={"stage": "fine"}, start_from=OTHER)


def test_another_job_cannot_be_started_from_without_a_volume() -> None:
    with pytest.raises(ConfigError, match=r"startFrom.jobName is sampling, .*; set checkpoint.claimName"):
        begin(None, "Never", start_from=OTHER)


def test_what_a_stage_starts_from_is_known_before_it_begins(tmp_path: Path) -> None:
    other_job(tmp_path, 40, 0.25)
    ours = source(tmp_path, attempt=0, start_from=OTHER)
    first = resume.origin(ours)
    assert first is not None
    assert (first.job_uid, first.stage, first.step) == ("theirs", "base", 40)
    assert resume.resumed(ours) is None
    assert resume.origin(source(tmp_path, attempt=0)) is None
    assert not (tmp_path / "ours").exists()


def test_what_a_stage_goes_on_from_is_known_before_it_begins(tmp_path: Path) -> None:
    own(tmp_path, 20, 0.5, basis="some")
    (own(tmp_path, 40, 0.5) / MODEL).write_text("not the model")
    known = resume.resumed(source(tmp_path))
    assert known is not None
    assert (known.step, known.basis) == (20, "some")
    with pytest.raises(ConfigError, match="its seed"):
        resume.resumed(source(tmp_path, ours={"seed": 7}))


@pytest.mark.parametrize("kind", ["snapshot", "origin"])
def test_the_snapshots_of_an_earlier_job_become_our_own_with_its_checkpoint(kind: store.Kind, tmp_path: Path) -> None:
    for step in (0, 20, 40, 60):
        keep(tmp_path, step, kind, job_uid="earlier")
    earlier_job(tmp_path, 40, 0.25, basis="theirs")
    begin(tmp_path, "Required", attempt=0)
    shutil.rmtree(tmp_path / "earlier")
    left = snapshots.find(tmp_path, "ours", "base", kind=kind)
    assert [snapshot.step for snapshot in left] == ([0, 20, 40] if kind == "snapshot" else [0, 20, 40, 60])
    with snapshots.Reader(left, 6) as reader:
        assert reader.read(0, 6).tolist() == [[snapshot.step] * 6 for snapshot in left]
        reader.verify()
    adopted = resume.resumed(source(tmp_path))
    assert adopted is not None
    assert (adopted.job_uid, adopted.step, adopted.basis) == ("ours", 40, "theirs")


def rolled_back(attempt: int, at_most: int, stage: str = "base", skip_to: int = 60) -> Branch:
    found = RollBack(attempt=attempt, stage=stage, from_step=60, at_most_step=at_most, skip_to_batch=skip_to)
    return Branch((found,))


def test_a_roll_back_leads_past_the_checkpoints_it_has_abandoned(tmp_path: Path) -> None:
    for step in (20, 40, 50):
        own(tmp_path, step, step / 100)
    assert begin(tmp_path, "Never", attempt=1, branch=rolled_back(0, 40)) == pytest.approx((40, 0.4))
    own(tmp_path, 45, 0.45, attempt=1)
    assert begin(tmp_path, "Never", attempt=2, branch=rolled_back(0, 40)) == pytest.approx((45, 0.45))


def test_a_later_stage_never_starts_from_an_abandoned_branch(tmp_path: Path) -> None:
    own(tmp_path, 88, 0.7, stage="base", attempt=0)
    own(tmp_path, 80, 0.8, stage="base", attempt=1)
    changes = {"start_from": BEFORE, "ours": {"stage": "fine"}}
    _, value = begin(tmp_path, "Never", attempt=2, branch=rolled_back(0, 40), **changes)
    assert value == pytest.approx(0.8)


def test_a_roll_back_before_an_earlier_jobs_checkpoint_takes_an_earlier_one_of_that_job(tmp_path: Path) -> None:
    earlier_job(tmp_path, 30, 0.3)
    earlier_job(tmp_path, 50, 0.5)
    own(tmp_path, 50, 0.5, attempt=0)
    assert begin(tmp_path, "Required", attempt=1, branch=rolled_back(0, 40)) == pytest.approx((30, 0.3))
    adopted = store.load_manifest(store.attempt_directory(tmp_path, "ours", "base", 1) / "step-00000030")
    assert adopted.skipped_batches == 30


def test_a_roll_back_of_a_required_job_without_an_earlier_checkpoint_begins_anew(tmp_path: Path) -> None:
    own(tmp_path, 50, 0.5, attempt=0)
    found = resume.begin(source(tmp_path, "Required", 1, branch=rolled_back(0, 40)), fresh(), ALONE)
    assert (found.step, found.skipped, found.rolled_back) == (0, 60, True)


def test_weights_that_are_not_finite_are_not_taken_over(tmp_path: Path) -> None:
    earlier_job(tmp_path, 30, float("nan"))
    with pytest.raises(ConfigError, match="not finite"):
        begin(tmp_path, "Required")
