"""Where a stage begins under each rule of `checkpoint.resume`: its own past, an earlier job's, or the stage before."""

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer import checkpoint, resume
from resnetboost_trainer.checkpoint import Arrays
from resnetboost_trainer.distributed import Communicator
from resnetboost_trainer.resume import Source
from resnetboost_trainer.state import MODEL, OPTIMIZER, State, shard
from resnetboost_trainer.verdict import ConfigError, StorageError
from smallcheckpoints import manifest, save, tree

Rule = Literal["Never", "IfPresent", "Required"]
EVERY_RULE: list[Rule] = ["Never", "IfPresent", "Required"]
ALONE = Communicator(0, 1)


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


def begin(root: Path | None, rule: Rule, attempt: int = 1, **changes: Any) -> tuple[int, float]:
    """(steps that are done, what every weight is) where an attempt of our job begins."""
    state = fresh()
    ours = manifest(0, job_uid="ours", attempt=attempt, **changes.pop("ours", {}))
    source = Source(root=root, ours=ours, rule=rule, **{"start_from": None, "total": 88} | changes)
    step = resume.begin(source, state, ALONE)
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
    assert begin(tmp_path, rule, ours={"stage": "fine"}, start_from="base") == begins


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_our_own_stage_before_is_enough_for_a_stage_that_no_earlier_job_reached(rule: Rule, tmp_path: Path) -> None:
    own(tmp_path, 88, 0.5)
    earlier_job(tmp_path, 88, 0.125)
    assert begin(tmp_path, rule, ours={"stage": "fine"}, start_from="base") == (0, 0.5)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_an_earlier_jobs_stage_before_is_not_ours(rule: Rule, tmp_path: Path) -> None:
    earlier_job(tmp_path, 88, 0.125)
    with pytest.raises(StorageError, match="stage fine begins where stage base ended"):
        begin(tmp_path, rule, ours={"stage": "fine"}, start_from="base")


def test_a_stage_that_an_earlier_job_finished_hands_its_weights_to_our_next_one(tmp_path: Path) -> None:
    earlier_job(tmp_path, 88, 0.25)
    assert begin(tmp_path, "Required", attempt=0) == (88, 0.25)
    assert begin(tmp_path, "Required", attempt=1, ours={"stage": "fine"}, start_from="base") == (0, 0.25)
