"""Where a stage begins: its own past, an earlier job's under each rule of `checkpoint.resume`, or another stage."""

import shutil
from pathlib import Path
from typing import Any, Literal

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer import checkpoint, resume, snapshots
from resnetboost_trainer.checkpoint import Arrays
from resnetboost_trainer.config import StartFrom
from resnetboost_trainer.distributed import Communicator
from resnetboost_trainer.resume import Source
from resnetboost_trainer.state import MODEL, OPTIMIZER, State, shard
from resnetboost_trainer.verdict import ConfigError, StorageError
from smallcheckpoints import keep, manifest, save, tree

Rule = Literal["Never", "IfPresent", "Required"]
EVERY_RULE: list[Rule] = ["Never", "IfPresent", "Required"]
ALONE = Communicator(0, 1)
BEFORE = StartFrom(stage="base")


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> None:
    """To be said before MindSpore computes anything in this process, or no later test could say it."""
    mindspore.set_device("CPU")


def fresh() -> State:
    network = nn.BatchNorm1d(2)
    return State(network, [Parameter(Tensor(np.zeros(2, np.float32)), name="momentum")], ALONE)


def contents(value: float) -> dict[str, Arrays]:
    """What a checkpoint holds of that little network; every number of it is the value."""
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
    return Source(root=root, ours=ours, rule=rule, **{"start_from": None, "total": 88} | changes)


def begin(root: Path | None, rule: Rule, attempt: int = 1, **changes: Any) -> tuple[int, float]:
    """(steps that are done, what every weight is) where an attempt of our job begins."""
    state = fresh()
    step = resume.begin(source(root, rule, attempt, **changes), state, ALONE)
    values = {float(value) for parameter in state.weights.values() for value in parameter.asnumpy()}
    return step, values.pop() if len(values) == 1 else 0.0


FRESH = (0, 0.0)  # a new network's weights are not all the same


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_restart_goes_on_from_its_own_checkpoint_whatever_the_rule_and_whatever_else_there_is(
    rule: Rule, tmp_path: Path
) -> None:
    own(tmp_path, 20, 0.5)
    earlier_job(tmp_path, 80, 0.25)
    assert begin(tmp_path, rule) == (20, 0.5)


def test_never_leaves_an_earlier_job_alone(tmp_path: Path) -> None:
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
    adopted = checkpoint.newest(tmp_path, "ours", "base", [])
    assert adopted is not None
    assert set(adopted.contents) == {MODEL, OPTIMIZER, shard(0)}
    assert begin(tmp_path, "Required", attempt=1) == (40, 0.25), "a restart finds it although that job is gone"


def test_if_present_begins_afresh_where_nothing_is(tmp_path: Path) -> None:
    assert begin(tmp_path, "IfPresent") == FRESH
    assert begin(None, "IfPresent") == FRESH


@pytest.mark.parametrize("kept", [True, False], ids=["on an empty volume", "without a volume"])
def test_required_refuses_to_begin_afresh(kept: bool, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Required, but no earlier job default/digits left .* stage base.*; set "):
        begin(tmp_path if kept else None, "Required")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ours": {"seed": 7}}, "its seed is 0, this job's is 7"),
        ({"ours": {"model": "resnet50/10/1"}}, "its model is 'resnet20/10/1', this job's is 'resnet50/10/1'"),
        ({"ours": {"dataset": "other"}}, "its dataset is 'digits', this job's is 'other'"),
        ({"ours": {"steps_per_epoch": 11}}, "its steps_per_epoch is 22, this job's is 11"),
        ({"total": 22}, "it is of step 40, this stage ends at 22"),
    ],
    ids=["seed", "model", "data set", "batch or ranks", "fewer epochs"],
)
@pytest.mark.parametrize("rule", ["IfPresent", "Required"])
def test_what_does_not_fit_is_refused_with_the_difference_and_the_remedy(
    rule: Rule, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    earlier_job(tmp_path, 40, 0.25)
    with pytest.raises(ConfigError) as caught:
        begin(tmp_path, rule, **changes)
    for part in (f"checkpoint.resume is {rule}", "step-00000040 of the earlier job default/digits (earlier)", says):
        assert part in str(caught.value)
    assert str(caught.value).endswith("restore that setting, or set checkpoint.resume to Never to begin afresh")
    assert not (tmp_path / "ours").exists()


def test_what_does_not_fit_is_no_matter_to_never(tmp_path: Path) -> None:
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


def test_an_earlier_job_of_our_name_may_be_started_from_and_we_may_not(tmp_path: Path) -> None:
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
def test_the_snapshots_of_an_earlier_job_become_our_own_with_its_checkpoint(
    kind: checkpoint.Kind, tmp_path: Path
) -> None:
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
