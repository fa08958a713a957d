"""A run folder on another number of ranks: what stays of its job, what its gang becomes, and what is refused."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from resnetboost_operator import sizes
from resnetboost_operator.errors import UserError
from resnetboost_operator.job import Job, parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.runs import curves, elastic, metricsfile
from resnetboost_operator.runs.metricsfile import Measured
from resnetboost_operator.validation import schema
from support import wholerun

BASE = {"name": "base", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8}
FINE = BASE | {"name": "fine"}
ADASUM = {"name": "sum", "algorithm": "Adasum", "epochs": 1, "localBatchSize": 8}


def manifest(count: int, *stages: dict[str, Any]) -> dict[str, Any]:
    claim = {"claimName": "claim"} if len(stages) > 1 else {}
    return schema.defaulted(wholerun.job(*(stages or (BASE,)), count=count, checkpoint=claim))


def job(count: int, *stages: dict[str, Any]) -> Job:
    return parse_job(manifest(count, *stages))


@pytest.mark.parametrize("asked", [1, 2, 4])
def test_a_run_goes_on_as_the_job_that_defines_it(asked: int) -> None:
    assert elastic.of_same_training(manifest(4), manifest(asked)) == manifest(4)


def test_other_changes_and_the_stages_own_numbers_stay_what_they_are() -> None:
    kept = manifest(4, BASE | {"deviceCount": 2}, FINE)
    added = [BASE | {"name": "new"}, BASE | {"name": "alone", "deviceCount": 1}]
    asked = manifest(2, BASE | {"deviceCount": 1, "epochs": 3}, FINE, *added)
    found = elastic.of_same_training(kept, asked)["spec"]
    assert found["device"]["count"] == 4
    assert [stage.get("deviceCount") for stage in found["stages"]] == [2, None, None, 1]
    assert found["stages"][0]["epochs"] == 3


@pytest.mark.parametrize(
    ("kept", "asked", "says"),
    [
        (4, 3, "device.count: 3: the run in this folder is defined by 4 ranks, whose work cannot be divided evenly "
         "among 3; use 1, 2 or 4, choose another folder"),
        (1, 2, "is defined by 1 rank, whose work cannot be divided evenly among 2; use 1, choose"),
        (4, 8, "cannot be divided evenly among 8; use 1, 2 or 4, "),
    ],
    ids=["uneven", "more than one", "more"],
)  # fmt: skip
def test_a_number_that_does_not_divide_is_refused(kept: int, asked: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        elastic.of_same_training(manifest(kept), manifest(asked))


def test_adasum_is_refused_and_its_stage_named() -> None:
    with pytest.raises(UserError, match=r"stage sum has the algorithm Adasum, .* 4 in this folder; use 4, "):
        elastic.of_same_training(manifest(4, BASE, ADASUM), manifest(2, BASE, ADASUM))
    with pytest.raises(UserError, match="stage sum has the algorithm Adasum"):
        elastic.of_same_training(manifest(4, BASE), manifest(2, BASE, ADASUM))
    assert elastic.of_same_training(manifest(4, ADASUM), manifest(4, ADASUM)) == manifest(4, ADASUM)


def test_batch_normalization_over_all_ranks_is_refused_and_its_stage_named() -> None:
    synced = FINE | {"syncBatchNorm": True}
    says = r"^device\.count: 2: stage fine has syncBatchNorm, which needs the images of all 4 ranks at once; use 4, "
    with pytest.raises(UserError, match=says):
        elastic.of_same_training(manifest(4, BASE, synced), manifest(2, BASE, synced))
    small = [BASE, synced | {"deviceCount": 2}]
    assert elastic.of_same_training(manifest(4, *small), manifest(2, *small)) == manifest(4, *small)


def test_adasum_on_devices_that_are_still_there_goes_on() -> None:
    stages = [BASE, ADASUM | {"deviceCount": 2}]
    assert elastic.of_same_training(manifest(4, *stages), manifest(2, *stages)) == manifest(4, *stages)


@pytest.mark.parametrize(
    ("ranks", "counts", "virtual"),
    [
        (1, [1, 1], {"base": 6, "fine": 2}),
        (2, [2, 2], {"base": 6}),
        (3, [3, 2], {"base": 6}),
        (5, [3, 2], {"base": 6}),
        (6, [6, 2], {}),
    ],
)
def test_each_stage_runs_on_the_most_ranks_that_divide_its_own(
    ranks: int, counts: list[int], virtual: dict[str, int]
) -> None:
    found = sizes.resized(job(6, BASE, FINE | {"deviceCount": 2}), ranks)
    assert [stage.device_count for stage in found.spec.stages] == counts
    assert found.virtual_ranks == virtual
    configs = {stage.name: trainer_config(found, stage, 0).get("virtualRanks") for stage in found.spec.stages}
    assert {name: count for name, count in configs.items() if count is not None} == virtual


@pytest.mark.parametrize(("ranks", "counts"), [(8, [6, 6, 1]), (4, [4, 2, 1]), (2, [2, 2, 1])])
def test_ranks_fill_their_nodes_or_are_fewer_than_one_has(ranks: int, counts: list[int]) -> None:
    stages = [BASE, FINE | {"deviceCount": 6}, BASE | {"name": "alone", "deviceCount": 1}]
    whole = manifest(12, *stages)
    whole["spec"]["device"]["perNode"] = 2
    found = sizes.resized(parse_job(whole), ranks)
    assert [stage.device_count for stage in found.spec.stages] == counts


def measured(ranks: list[float], attempts: list[int]) -> Measured:
    steps = range(1, len(ranks) + 1)
    columns: dict[str, Sequence[float]] = {
        "ranks": ranks,
        "step_seconds": [0.1] * len(ranks),
        "loss": [1.0] * len(ranks),
    }
    return Measured(steps, ["base"] * len(ranks), attempts, columns)


def test_the_picture_shows_ranks_where_they_changed_and_only_there() -> None:
    moved = measured([4, 4, 2, 2, 4], [0, 0, 1, 1, 2])
    assert curves.changed_ranks(moved)
    assert not curves.changed_ranks(measured([4, 4], [0, 1]))
    assert not curves.changed_ranks(measured([float("nan"), 4], [0, 1])), "a part of it is of before there was a column"
    labels = [label for _, label, _ in curves._takeovers(moved)]
    assert labels == ["attempt 1, 2 ranks", "attempt 2, 4 ranks"]
    plain, drawn = (curves.draw(moved, "title", curves.Did(changed_ranks=changed)) for changed in (False, True))
    assert len(drawn) > len(plain)
    assert msgspec.structs.replace(curves.Did(), changed_ranks=True).names == ["number of ranks"]
    assert metricsfile.or_zero(float("nan")) == 0
