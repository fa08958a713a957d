"""Merge patches of a Workload. Each names the uid and resourceVersion that it was decided for.

A merge patch replaces a list as a whole, so a patch of conditions has all of them; the version makes that safe.
"""

from typing import Any

from resnetboost_api.status import Condition as JobCondition
from resnetboost_operator.job import Job
from resnetboost_operator.observed.conditions import Condition
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.scheduling.kueue.workload import POD_SET, priority_class

Manifest = dict[str, Any]

POD_READY, STARTED, RECOVERED = "PodsReady", "Started", "Recovered"
WAIT_FOR_START, WAIT_FOR_RECOVERY = "WaitForStart", "WaitForRecovery"
# Evictions after which Kueue's own jobs are queued again at once. Others wait for somebody or something.
_REQUEUED = frozenset({"Preempted", "NodeFailures"})
_MESSAGE_LIMIT = 1024


def queue(workload: WorkloadView, job: Job, name: str, priority: int | None) -> Manifest:
    """Give a Workload the queue of that name and the job's priority."""
    found = priority_class(job)
    # null removes a field.
    spec = {
        "queueName": name,
        "priorityClassRef": found._asdict() if found is not None else None,
        "priority": priority if found is not None else None,
    }
    return {"metadata": _identity(workload), "spec": spec}


def status(workload: WorkloadView, ready: bool, reclaimable: int, now: str) -> Manifest | None:
    """Report whether all ranks run, and how many pods the job will not need again; None if Kueue knows."""
    changes: Manifest = {}
    if (condition := _pods_ready(workload, ready, now)) is not None:
        changes["conditions"] = _conditions(workload, {POD_READY: condition})
    if reclaimable > workload.reclaimed:
        changes["reclaimablePods"] = [{"name": POD_SET, "count": reclaimable}]
    return _status(workload, changes) if changes else None


def release(workload: WorkloadView, now: str) -> Manifest:
    """Give the quota of an evicted Workload back. Kueue waits for this: it does not know when the pods are gone."""
    evicted = workload.conditions["Evicted"]
    why = evicted.message
    requeued = "True" if evicted.reason in _REQUEUED else "False"
    changes = {
        "QuotaReserved": Condition("False", "Pending", why, now),
        "Admitted": Condition("False", "NoReservation", "The workload has no reservation", now),
        "Requeued": Condition(requeued, evicted.reason, why, now),
        POD_READY: Condition("False", WAIT_FOR_START, "no pod is left", now),
    }
    return _status(workload, {"admission": None, "conditions": _conditions(workload, changes)})


def finished(workload: WorkloadView, end: JobCondition, now: str) -> Manifest:
    """Report the end of the job, by its condition Complete or Failed. Kueue then gives the quota to others."""
    reason = "Succeeded" if end.type == "Complete" else "Failed"
    changes = {"Finished": Condition("True", reason, end.message, now)}
    return _status(workload, {"conditions": _conditions(workload, changes)})


def _pods_ready(workload: WorkloadView, ready: bool, now: str) -> Condition | None:
    known = workload.conditions.get(POD_READY)
    if known is not None and known.status == ("True" if ready else "False"):
        return None
    if not ready:
        recovers = known is not None
        return Condition("False", WAIT_FOR_RECOVERY if recovers else WAIT_FOR_START, "not all ranks run", now)
    recovered = known is not None and known.reason == WAIT_FOR_RECOVERY
    return Condition("True", RECOVERED if recovered else STARTED, "all ranks run", now)


def _identity(workload: WorkloadView) -> Manifest:
    return {"uid": workload.uid, "resourceVersion": workload.version}


def _status(workload: WorkloadView, changes: Manifest) -> Manifest:
    return {"metadata": _identity(workload), "status": changes}


def _conditions(workload: WorkloadView, changes: dict[str, Condition]) -> list[Manifest]:
    """All conditions, some of them changed. The time of a condition moves only with its status."""
    found = dict(workload.conditions)
    for kind, changed in changes.items():
        before = found.get(kind)
        same = before is not None and before.status == changed.status
        time = before.time if same and before is not None else changed.time
        found[kind] = Condition(
            changed.status, changed.reason, changed.message[:_MESSAGE_LIMIT], time, workload.generation
        )
    return [_condition(kind, condition) for kind, condition in found.items()]


def _condition(kind: str, condition: Condition) -> Manifest:
    written: Manifest = {
        "type": kind,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.time,
    }
    return written | ({"observedGeneration": condition.generation} if condition.generation else {})
