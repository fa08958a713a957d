"""`resnetboost run` refuses a job this machine cannot run, and names the field to change."""

import re
from typing import Any

import pytest

from resnetboost_operator.errors import UserError
from resnetboost_operator.local.entry import check_room, check_starts

MEMORY_BYTES = 4 << 30  # for six ranks


def spec(count: int, *stages: int | None) -> dict[str, Any]:
    given = [{"deviceCount": ranks} if ranks is not None else {} for ranks in stages]
    return {"device": {"count": count}, "stages": given}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (spec(7, None), "device.count: 7 ranks need about 4 GiB of memory, this machine has 4 GiB; use at most 6"),
        (spec(64, 2, None), "device.count: 64 ranks need about 37 GiB"),
        (spec(64, 2, 16, 8), "stages[1].deviceCount: 16 ranks need about 9 GiB"),
    ],
    ids=["the job's devices", "those of one stage", "a stage's own"],
)
def test_the_largest_stage_must_fit_into_memory(wanted: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_room(wanted, MEMORY_BYTES)


@pytest.mark.parametrize("wanted", [spec(6, None), spec(64, 2, 6)], ids=["the job's devices", "stages' own"])
def test_unused_devices_need_no_memory(wanted: dict[str, Any]) -> None:
    check_room(wanted, MEMORY_BYTES)


def test_a_single_rank_is_always_allowed() -> None:
    check_room(spec(1, None), 1)


def test_a_start_from_another_job_needs_a_cluster() -> None:
    stages = [{"name": "base"}, {"name": "fine", "startFrom": {"stage": "base", "jobName": "other"}}]
    with pytest.raises(UserError, match=re.escape("stages[1].startFrom.jobName: other: only jobs on a cluster")):
        check_starts({"stages": stages})


def test_a_start_from_an_earlier_stage_needs_none() -> None:
    check_starts({"stages": [{"name": "base"}, {"name": "fine", "startFrom": {"stage": "base"}}]})
