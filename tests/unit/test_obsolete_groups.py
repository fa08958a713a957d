"""PodGroups without pods go, so that no scheduler keeps anything for them; those that pods need or will need stay."""

from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api.status import StageStatus, Status
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.capabilities import VOLCANO
from resnetboost_operator.observed.podgroup import PodGroupView, view
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import Observation
from resnetboost_operator.planning.plan import plan
from support.scheduled import pod_group
from support.simulation import job

JOB = replace(job(device={"type": "CPU", "count": 1}), uid="u-1")
ENDED = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": 1}}}]}


def group(attempt: int, **metadata: Any) -> PodGroupView:
    found = pod_group(JOB, VOLCANO, attempt)
    found["metadata"] |= {"uid": f"g-{attempt}", **metadata}
    return view(found, VOLCANO)


def pod(attempt: int, status: dict[str, Any] | None = None, **metadata: Any) -> PodView:
    found = pod_manifest(JOB, JOB.spec.stages[0], attempt, 0)
    found["metadata"] |= {"uid": f"p-{attempt}", **metadata}
    return pods.view({**found, "status": status or {"phase": "Running"}})


def going(
    *groups: PodGroupView, pods: tuple[PodView, ...] = (), wanted: Job = JOB, attempt: int = 1, **known: Any
) -> list[int]:
    """Attempts of the groups that the plan deletes."""
    status = Status(stage="base", stages=(StageStatus("base"),), attempt=attempt, **known)
    decided = plan(wanted, status, Observation(pods=pods, pod_groups=groups), 1_000_000.0)
    return [found.attempt for found in decided.obsolete_groups]


def test_the_group_of_pods_stays_and_so_does_one_that_waits_for_them() -> None:
    assert going(group(1), pods=(pod(1),)) == []
    assert going(group(1)) == []


def test_an_earlier_group_goes_with_its_last_pod() -> None:
    assert going(group(0), group(1), pods=(pod(0, deletionTimestamp="2026-01-01T00:00:00Z"),)) == []
    assert going(group(0), group(1), pods=(pod(0, ENDED),)) == [0], "a pod that has ended needs nothing"
    assert going(group(0), group(1)) == [0]


def test_a_group_that_is_being_deleted_is_left_alone() -> None:
    assert going(group(0, deletionTimestamp="2026-01-01T00:00:00Z")) == []


def suspended() -> Job:
    return replace(JOB, spec=replace(JOB.spec, run_policy=replace(JOB.spec.run_policy, suspend=True)))


def test_a_suspended_job_has_no_group_once_its_pods_are_gone() -> None:
    assert going(group(1), pods=(pod(1),), wanted=suspended()) == []
    assert going(group(1), wanted=suspended()) == [1]


@pytest.mark.parametrize("code", [0, 10], ids=["complete", "failed"])
def test_a_finished_job_has_no_group_although_its_pods_stay(code: int) -> None:
    state = {"terminated": {"exitCode": code}}
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "trainer", "state": state}]}
    assert going(group(1), pods=(pod(1, status),), attempt_start_time="1970-01-12T13:00:00Z") == [1]
