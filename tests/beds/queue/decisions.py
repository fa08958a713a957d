"""What Kueue does next: the next write of a status, from all Workloads of a namespace. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from beds.queue.topology import assignment
from support import kueuestatus
from support.kueuestatus import condition, holds_quota, is_true, pods, with_condition

Manifest = dict[str, Any]

FLAVOR = "default-flavor"


class Queue(NamedTuple):
    """A LocalQueue with a ClusterQueue of its own.

    quota: how many pods it admits at once.
    flavor: name of the ResourceFlavor of its pods.
    nodes: free places of each node; then the topology of its nodes is taken into account.
    preempts: a Workload may take the quota of those with a lower priority.
    """

    quota: int
    flavor: str = FLAVOR
    nodes: Mapping[str, int] | None = None
    preempts: bool = True


class Write(NamedTuple):
    """The new status of a Workload."""

    workload: Manifest
    status: Manifest


def next_write(
    workloads: Sequence[Manifest], queues: Mapping[str, Queue], owners: Collection[str], now: str
) -> Write | None:
    """The next write, None if there is none. `owners` are the uids of all jobs."""
    alive = [found for found in workloads if not is_true(found, "Finished") and not _is_going(found)]
    for workload in alive:
        status = _upkeep(workload, owners, now)
        if status is not None:
            return Write(workload, status)
    waiting = sorted((found for found in alive if _is_pending(found)), key=_place)
    for workload in waiting:
        if (found := _serve(workload, workloads, queues.get(workload["spec"]["queueName"]), now)) is not None:
            return found
    return None


def _upkeep(workload: Manifest, owners: Collection[str], now: str) -> Manifest | None:
    """What does not depend on other Workloads: the end of an orphan, spec.active, and the end of a back-off."""
    owner = next((found["uid"] for found in workload["metadata"].get("ownerReferences", [])), "")
    if owner not in owners:
        return with_condition(workload, "Finished", "True", "OwnerNotFound", "The owner was not found", now)
    if not workload["spec"].get("active", True):
        if holds_quota(workload):
            words = "The workload is deactivated"
            evicted = with_condition(workload, "Evicted", "True", "Deactivated", words, now)
            return None if is_true(workload, "Evicted") else evicted
        if condition(workload, "QuotaReserved").get("reason") == "Deactivated":
            return None
        return with_condition(workload, "QuotaReserved", "False", "Deactivated", "The workload is deactivated", now)
    if not holds_quota(workload) and condition(workload, "Requeued").get("status") == "False":
        reason = "Reactivated" if condition(workload, "Requeued")["reason"] == "Deactivated" else "BackoffFinished"
        return with_condition(workload, "Requeued", "True", reason, "The workload is queued again", now)
    return None


def _serve(workload: Manifest, workloads: Sequence[Manifest], queue: Queue | None, now: str) -> Write | None:
    """Admit a waiting Workload, make room for it, or say why it waits."""
    name = workload["spec"]["queueName"]
    if queue is None:
        return _refused(workload, "Inadmissible", f"LocalQueue {name} doesn't exist", now)
    holders = [found for found in workloads if holds_quota(found) and found["spec"]["queueName"] == name]
    lacking = pods(workload) - (queue.quota - sum(map(pods, holders)))
    if lacking <= 0:
        return Write(workload, _admitted(workload, queue, now))
    if queue.preempts and (victim := _victim(workload, holders, lacking)) is not None:
        status = victim
        if is_true(status, "Evicted"):
            return _waiting(workload, queue, lacking, now)
        words = "Preempted to accommodate a workload of a higher priority"
        return Write(victim, with_condition(victim, "Evicted", "True", "Preempted", words, now))
    return _waiting(workload, queue, lacking, now)


def _waiting(workload: Manifest, queue: Queue, lacking: int, now: str) -> Write | None:
    short = f"insufficient unused quota for cpu in flavor {queue.flavor}, {lacking} more needed"
    message = f"couldn't assign flavors to pod set ranks: {short}"
    return _refused(workload, "WaitingForQuota", message, now)


def _refused(workload: Manifest, reason: str, message: str, now: str) -> Write | None:
    known = condition(workload, "QuotaReserved")
    if (known.get("status"), known.get("reason"), known.get("message")) == ("False", reason, message):
        return None
    return Write(workload, with_condition(workload, "QuotaReserved", "False", reason, message, now))


def _admitted(workload: Manifest, queue: Queue, now: str) -> Manifest:
    given: Manifest = {"flavors": {"cpu": queue.flavor}}
    if queue.nodes is not None:
        given["topologyAssignment"] = assignment(queue.nodes, pods(workload))
    status = kueuestatus.with_reservation(workload, now, f"cluster-{workload['spec']['queueName']}", **given)
    again = {**workload, "status": status}
    return with_condition(again, "Admitted", "True", "Admitted", "The workload is admitted", now)


def _victim(workload: Manifest, holders: Sequence[Manifest], lacking: int) -> Manifest | None:
    """The first one to preempt, the lowest priority and the youngest first; None if that would not be enough."""
    lower = [found for found in holders if _priority(found) < _priority(workload)]
    if sum(map(pods, lower)) < lacking:
        return None
    return max(lower, key=_place)


def _is_going(workload: Manifest) -> bool:
    return "deletionTimestamp" in workload["metadata"]


def _is_pending(workload: Manifest) -> bool:
    return bool(workload["spec"].get("active", True)) and not holds_quota(workload)


def _place(workload: Manifest) -> tuple[int, str, str]:
    """The place in the queue: an eviction does not change it."""
    return (-_priority(workload), workload["metadata"]["creationTimestamp"], workload["metadata"]["name"])


def _priority(workload: Manifest) -> int:
    priority: int = workload["spec"].get("priority", 0)
    return priority
