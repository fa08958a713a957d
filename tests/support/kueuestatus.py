"""What Kueue writes into the status of a Workload, for tests that play its part. Pure: each returns the new status."""

from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]

POD_SET = "ranks"


def condition(workload: Mapping[str, Any], kind: str) -> Manifest:
    """A condition of a Workload; empty without."""
    found = workload.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})


def is_true(workload: Mapping[str, Any], kind: str) -> bool:
    """Whether a condition of a Workload is True."""
    return condition(workload, kind).get("status") == "True"


def holds_quota(workload: Mapping[str, Any]) -> bool:
    """Whether quota is reserved for a Workload; its end gives it back."""
    return is_true(workload, "QuotaReserved") and not is_true(workload, "Finished")


def pods(workload: Mapping[str, Any]) -> int:
    """Pods for which a Workload needs quota."""
    count: int = workload["spec"]["podSets"][0]["count"]
    return count - reclaimed(workload)


def reclaimed(workload: Mapping[str, Any]) -> int:
    """Pods whose quota the owner gave back early."""
    return sum(found["count"] for found in workload.get("status", {}).get("reclaimablePods", []))


def with_condition(
    workload: Mapping[str, Any], kind: str, value: str, reason: str, message: str, time: str
) -> Manifest:
    """The status with that condition. Its time moves with its status only."""
    status, before = workload.get("status", {}), condition(workload, kind)
    if before.get("status") == value:
        time = before["lastTransitionTime"]
    new: Manifest = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": time}
    new["observedGeneration"] = workload["metadata"].get("generation", 1)
    kept = [found for found in status.get("conditions", []) if found["type"] != kind]
    return {**status, "conditions": [*kept, new]}


def with_reservation(
    workload: Mapping[str, Any], time: str, cluster_queue: str = "cluster-queue", **assignment: Any
) -> Manifest:
    """The status of a Workload that gets quota; an eviction is over then. `assignment` is of its ranks."""
    ranks = {"name": POD_SET, "flavors": {"cpu": "spot"}, "count": pods(workload)} | assignment
    admission = {"clusterQueue": cluster_queue, "podSetAssignments": [ranks]}
    message = f"Quota reserved in ClusterQueue {cluster_queue}"
    status = with_condition(workload, "QuotaReserved", "True", "QuotaReserved", message, time)
    if is_true(workload, "Evicted"):
        again = {**workload, "status": status}
        status = with_condition(again, "Evicted", "False", "QuotaReserved", "Previously: evicted", time)
    return {**status, "admission": admission}
