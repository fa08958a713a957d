"""What each gang scheduler writes into the status of its PodGroups, and what is read from it.

The statuses have the form of the schedulers' own types and documents: kube-scheduler 1.36.3 and 1.37.1
(api/scheduling), Volcano (the gang plugin's sentences), Coscheduling (a phase alone).
"""

from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_operator.observed import capabilities, podgroup
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.scheduling.coscheduling import COSCHEDULING
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler
from resnetboost_operator.scheduling.kubernetes import KUBERNETES_136, KUBERNETES_137
from resnetboost_operator.scheduling.volcano import VOLCANO

EARLIER, LATER = "2026-08-18T12:59:37Z", "2026-08-18T12:59:45Z"
GANG_WORDS = (
    "4/4 tasks in gang unschedulable: pod group is not ready, 4 Pending, 4 minAvailable; Pending: 2 Schedulable"
)
READY = "tasks in gang are ready to be scheduled"
# As Kubernetes 1.36.3 wrote it for a group whose topology key no node had.
KUBERNETES_WORDS = (
    "no feasible placements found, workload aware preemption is not supported for pod groups with scheduling "
    "constraints"
)


def view(scheduler: GangScheduler, status: dict[str, Any] | None) -> PodGroupView:
    """A group of that scheduler with the status, as the API server returns it."""
    metadata = {
        "name": "job-base-3",
        "namespace": "default",
        "uid": "u",
        "labels": {names.LABEL_JOB_UID: "j", names.LABEL_ATTEMPT: "3"},
    }
    group = {"apiVersion": scheduler.api, "kind": "PodGroup", "metadata": metadata, "spec": {}}
    return podgroup.view(group if status is None else {**group, "status": status}, scheduler.api)


def why(scheduler: GangScheduler, status: dict[str, Any] | None) -> tuple[str, str] | None:
    return scheduler.why(view(scheduler, status))


def condition(kind: str, value: str, reason: str, message: str = "", time: str = EARLIER) -> dict[str, Any]:
    return {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": time}


@pytest.mark.parametrize("scheduler", [KUBERNETES_136, KUBERNETES_137, VOLCANO, COSCHEDULING], ids=lambda one: one.name)
@pytest.mark.parametrize("status", [None, {}, {"conditions": []}, {"phase": ""}])
def test_a_group_that_nobody_has_looked_at_says_nothing(
    scheduler: GangScheduler, status: dict[str, Any] | None
) -> None:
    assert why(scheduler, status) is None
    assert view(scheduler, status).attempt == 3


@pytest.mark.parametrize(
    ("scheduler", "kind"),
    [(KUBERNETES_136, "PodGroupScheduled"), (KUBERNETES_137, "PodGroupInitiallyScheduled")],
    ids=["1.36", "1.37"],
)
class TestKubernetes:
    @pytest.mark.parametrize("reason", ["Unschedulable", "SchedulerError"])
    def test_a_group_without_a_place_has_the_schedulers_reason(
        self, scheduler: GangScheduler, kind: str, reason: str
    ) -> None:
        assert why(scheduler, {"conditions": [condition(kind, "False", reason, KUBERNETES_WORDS)]}) == (
            reason,
            KUBERNETES_WORDS,
        )

    def test_a_scheduled_or_a_preempted_group_is_not_unscheduled(self, scheduler: GangScheduler, kind: str) -> None:
        preempted = condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempting")
        assert why(scheduler, {"conditions": [condition(kind, "True", "Scheduled"), preempted]}) is None


class TestVolcano:
    UNSCHEDULABLE = condition("Unschedulable", "True", "NotEnoughResources", GANG_WORDS)

    @pytest.mark.parametrize("phase", ["Pending", "Inqueue", "Unknown"])
    def test_a_group_that_waits_has_the_gang_plugins_sentence(self, phase: str) -> None:
        found = why(VOLCANO, {"phase": phase, "conditions": [self.UNSCHEDULABLE]})
        assert found == ("NotEnoughResources", GANG_WORDS)

    def test_of_two_conditions_that_both_stay_true_the_later_one_counts(self) -> None:
        """As after an eviction (first Scheduled), and before the phase follows (first Unschedulable)."""
        unschedulable = condition("Unschedulable", "True", "NotEnoughResources", GANG_WORDS, LATER)
        before = condition("Scheduled", "True", READY, time=EARLIER)
        assert why(VOLCANO, {"phase": "Pending", "conditions": [unschedulable, before]}) is not None
        after = condition("Scheduled", "True", READY, time=LATER)
        assert why(VOLCANO, {"phase": "Inqueue", "conditions": [self.UNSCHEDULABLE, after]}) is None

    @pytest.mark.parametrize("phase", ["Running", "Completed"])
    def test_the_sentence_outlives_the_wait_and_is_old_then(self, phase: str) -> None:
        scheduled = condition("Scheduled", "True", READY)  # within the same second
        assert why(VOLCANO, {"phase": phase, "conditions": [self.UNSCHEDULABLE, scheduled]}) is None


@pytest.mark.parametrize("phase", ["Pending", "Scheduling", "Unknown", "Running", "Finished", "Failed"])
def test_coschedulings_phase_is_no_reason_because_its_pods_have_one(phase: str) -> None:
    assert why(COSCHEDULING, {"phase": phase, "running": 1, "occupiedBy": "default/job"}) is None
    assert view(COSCHEDULING, {"phase": phase}).phase == phase


def test_every_api_that_is_watched_is_read_by_its_own_scheduler() -> None:
    read = {one.api for one in (KUBERNETES_136, KUBERNETES_137, VOLCANO, COSCHEDULING)}
    assert read == set(capabilities.POD_GROUP_APIS)
