"""Admission by a queue, the condition Admitted: whether Kueue is in charge of the job, and what it says."""

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.conditions import Condition
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.planning.conditions import with_condition, without_condition
from resnetboost_operator.scheduling.kueue import workload as workloads
from resnetboost_operator.status import ADMITTED

QUEUE_CHANGED = "QueueChanged"
# Reasons of the condition Admitted=False for a job that runs all the same.
WITHOUT_QUEUE = frozenset({"KueueDisabled", "KueueMissing", "NotQueued"})
_WITHOUT_EFFECT = f"the label {names.LABEL_QUEUE} has no effect, and the job runs without its queue"
_REMEDIES = {
    "KueueDisabled": "the operator runs without --kueue; set kueue.enabled of its chart",
    "KueueMissing": "the cluster does not serve kueue.x-k8s.io/v1beta2; install Kueue 0.15 or later",
    "NotQueued": "its pods are older than the label; suspend the job to have it queued, or wait for its next attempt",
}


def is_queued(state: ObservedState) -> bool:
    """Whether Kueue decides when the job runs: by the job's label, or because there is a Workload of it."""
    return state.observation.is_queued(state.job)


def is_admitted(state: ObservedState) -> bool:
    """Whether the job's pods may exist now. By the status of conditions only: their reasons vary between versions."""
    found = state.observation.workload
    if found is None or found.deleting or not found.active or not found.admission:
        return False
    return found.is_true("Admitted") and not found.is_true("Evicted") and not found.is_true("Finished") and fits(state)


def has_quota(workload: WorkloadView) -> bool:
    """Whether quota is reserved for the Workload; its queue and its pods cannot change then."""
    return workload.is_true("QuotaReserved")


def fits(state: ObservedState) -> bool:
    """Whether the Workload is for at least as many pods as the job still needs."""
    found = state.observation.workload
    return found is not None and found.count - found.reclaimed >= workloads.count(state.job, state.stage)


def runs_without(state: ObservedState) -> bool:
    """Whether the current gang was created without a queue, before the job had one."""
    known = statuses.condition(state.status, ADMITTED)
    if state.observation.workload is not None or (known is not None and known.reason not in WITHOUT_QUEUE):
        return False
    return state.status.attempt_creation_time is not None


def with_admission(state: ObservedState) -> ObservedState:
    """The state with the condition Admitted in its status, with the queue's own reason and message."""
    if statuses.is_terminal(state.status):
        return state
    return replace(state, status=_with_condition(state))


def _with_condition(state: ObservedState) -> Status:
    status = state.status
    if is_queued(state) and is_admitted(state):
        return with_condition(status, ADMITTED, True, *_admitted(state), state.time)
    if is_queued(state):
        return with_condition(status, ADMITTED, False, *_not_admitted(state), state.time)
    if state.job.queue:
        reason = "KueueMissing" if state.observation.capabilities.kueue_enabled else "KueueDisabled"
        return with_condition(status, ADMITTED, False, reason, _without_effect(reason), state.time)
    return without_condition(status, ADMITTED)


def _without_effect(reason: str) -> str:
    return f"{_WITHOUT_EFFECT}: {_REMEDIES[reason]}"


def _admitted(state: ObservedState) -> tuple[str, str]:
    found = state.observation.workload
    assert found is not None
    return _changed(state, found) or _words(found.conditions["Admitted"])


def _changed(state: ObservedState, found: WorkloadView) -> tuple[str, str] | None:
    """What to do about a queue that changed while quota of the old one is reserved; None if it did not."""
    if found.queue == state.job.queue or not has_quota(found):
        return None
    named = f"names {state.job.queue} now" if state.job.queue else "is gone"
    message = f"the job has quota of the queue {found.queue}, but its label {names.LABEL_QUEUE} {named}"
    return QUEUE_CHANGED, f"{message}; suspend the job to move it"


def _not_admitted(state: ObservedState) -> tuple[str, str]:
    """Why the job's pods must not exist: the queue's words where it has said something."""
    found = state.observation.workload
    if runs_without(state):
        return "NotQueued", _without_effect("NotQueued")
    if state.job.spec.run_policy.suspend and not (state.gang or state.stale):
        return "Suspended", "the job is suspended"
    if found is None:
        return _without_workload(state)
    if found.deleting:
        return "WorkloadDeleted", f"its Workload {found.name} is being deleted; it gets a new one"
    if found.is_true("Finished"):
        return _words(found.conditions["Finished"])
    if found.is_true("Evicted") and has_quota(found):
        return _words(found.conditions["Evicted"])
    if not found.active:
        return "Deactivated", f"spec.active of its Workload {found.name} is false; set it to true to have it queued"
    if not fits(state):
        return (
            "WorkloadOutdated",
            f"its Workload {found.name} is for {found.count - found.reclaimed} pods; it gets a new one",
        )
    return _changed(state, found) or _waiting(found)


def _without_workload(state: ObservedState) -> tuple[str, str]:
    if state.gang or state.stale:
        return "WorkloadDeleted", "its Workload is gone; it gets a new one once its pods have stopped"
    wanted = workloads.priority_class(state.job)
    if wanted is not None and state.observation.priority is None:
        return "PriorityUnknown", f"the {wanted.kind} {wanted.name} is not known; create it, or correct the job"
    if state.observation.obstacle is not None:
        return "WorkloadRefused", f"its Workload is not let in: {state.observation.obstacle.message}"
    return "WorkloadMissing", "its Workload is being created"


def _waiting(found: WorkloadView) -> tuple[str, str]:
    """What a Workload waits for: quota, or with quota the admission checks."""
    quota = found.conditions.get("QuotaReserved")
    if quota is None:
        return "Pending", "the queue has not looked at it yet"
    if quota.status != "True":
        return _words(quota)
    checks = [check for check in found.checks if check.get("state") != "Ready"]
    if not checks:
        return "UnsatisfiedAdmissionChecks", "its quota is reserved, but it is not admitted yet"
    told = "; ".join(f"{check.get('name')}: {check.get('message') or check.get('state')}" for check in checks)
    return "UnsatisfiedAdmissionChecks", f"its quota is reserved; it waits for {told}"


def _words(condition: Condition) -> tuple[str, str]:
    return condition.reason, condition.message
