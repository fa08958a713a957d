"""A Kueue of one Workload, for tests of the plan: it takes writes as the API server does, and admits on demand."""

import copy
import itertools
from typing import Any

from resnetboost_operator.observed import workload as workloads
from resnetboost_operator.observed.pods import timestamp
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.planning.actions import WorkloadWrite
from support import kueuestatus

Manifest = dict[str, Any]

START = 1_700_000_000.0


class Kueue:
    """`workload` is the object as the API server has it, None without; `writes` are the operator's, in order."""

    def __init__(self) -> None:
        self.workload: Manifest | None = None
        self.writes: list[str] = []
        self._numbers = itertools.count(1)

    def view(self) -> WorkloadView | None:
        return None if self.workload is None else workloads.view(self.workload)

    def write(self, wanted: WorkloadWrite) -> None:
        """What the API server does with a write of the operator; fails the test where it would refuse it."""
        self.writes.append(wanted.verb)
        if wanted.verb == "create":
            assert self.workload is None, "there is a Workload already"
            self.workload = copy.deepcopy(wanted.body)
            self.workload["metadata"] |= {"uid": f"workload-{next(self._numbers)}", "generation": 1}
            self.workload["metadata"]["creationTimestamp"] = timestamp(START + next(self._numbers))
            self.workload["status"] = {}
            self._count_version()
            return
        assert self.workload is not None
        before, known = copy.deepcopy(self.workload), self.workload["metadata"]
        assert wanted.body["metadata"]["uid"] == known["uid"]
        if wanted.verb == "delete":
            assert set(wanted.body) == {"metadata"}
            self.workload = None
            return
        assert wanted.body["metadata"]["resourceVersion"] == known["resourceVersion"], "decided for another version"
        assert set(wanted.body) == {"metadata", "spec" if wanted.verb == "patch" else "status"}
        self.workload = _merged(self.workload, wanted.body)
        self._check(before, self.workload)
        self._count_version()

    def _check(self, before: Manifest, after: Manifest) -> None:
        """The rules of Kueue's CRD and webhook that a patch of ours could break."""
        kinds = [found["type"] for found in after["status"].get("conditions", [])]
        assert len(kinds) == len(set(kinds))
        assert {found["type"] for found in before["status"].get("conditions", [])} <= set(kinds), "a condition is lost"
        for found in after["status"].get("conditions", []):
            assert found["reason"] and found["lastTransitionTime"] and found["status"] in ("True", "False")
        spec = after["spec"]
        assert ("priorityClassRef" in spec) == ("priority" in spec)
        if self.holds_quota():
            assert before["spec"]["queueName"] == spec["queueName"], "queueName is immutable while quota is reserved"
            assert before["spec"]["podSets"] == spec["podSets"]
            assert after["status"].get("admission"), "quota is reserved, so there must be an admission"
        given, now = (kueuestatus.reclaimed(found) for found in (before, after))
        assert given <= now <= spec["podSets"][0]["count"], "reclaimablePods may only grow"

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason), empty without."""
        found = kueuestatus.condition(self.workload or {}, kind)
        return found.get("status", ""), found.get("reason", "")

    def holds_quota(self) -> bool:
        return self.workload is not None and kueuestatus.holds_quota(self.workload)

    def allows_pods(self) -> bool:
        """Whether pods of the Workload may be created."""
        if self.workload is None or "deletionTimestamp" in self.workload["metadata"]:
            return False
        stopped = "True" in (self.condition("Evicted")[0], self.condition("Finished")[0])
        return self.condition("Admitted")[0] == "True" and not stopped and self.workload["spec"].get("active", True)

    # What Kueue and administrators do

    def refuse(self, message: str = "insufficient unused quota") -> None:
        if self._may_reserve():
            self._set("QuotaReserved", "False", "WaitingForQuota", message)

    def reserve(self, **assignment: Any) -> None:
        """Quota is there; admission checks may still be missing."""
        if not self._may_reserve():
            return
        assert self.workload is not None
        self.workload["status"] = kueuestatus.with_reservation(self.workload, self._time(), **assignment)
        self._count_version()

    def admit(self, **assignment: Any) -> None:
        self.reserve(**assignment)
        if self.holds_quota() and self.condition("Evicted")[0] != "True":
            self._set("Admitted", "True", "Admitted", "The workload is admitted")

    def evict(self, reason: str = "Preempted") -> None:
        if self.holds_quota():
            self._set("Evicted", "True", reason, "Preempted to accommodate a workload of a higher priority")

    def activate(self, value: bool) -> None:
        """What an administrator does, and Kueue after it."""
        if self.workload is None:
            return
        self.workload["spec"]["active"] = value
        self._count_version()

    def notice_inactive(self) -> None:
        """Kueue evicts what an administrator has made inactive."""
        if self.workload is not None and not self.workload["spec"].get("active", True):
            self.evict("Deactivated")

    def finish(self) -> None:
        """As Kueue does with a Workload whose owner it does not find."""
        if self.workload is not None:
            self._set("Finished", "True", "OwnerNotFound", "the owner was not found")

    def remove(self) -> None:
        """Somebody deletes the Workload."""
        self.workload = None

    def _may_reserve(self) -> bool:
        if self.workload is None or not self.workload["spec"].get("active", True):
            return False
        return not self.holds_quota() and self.condition("Finished")[0] != "True"

    def _set(self, kind: str, value: str, reason: str, message: str) -> None:
        assert self.workload is not None
        self.workload["status"] = kueuestatus.with_condition(self.workload, kind, value, reason, message, self._time())
        self._count_version()

    def _time(self) -> str:
        return timestamp(START + next(self._numbers))

    def _count_version(self) -> None:
        assert self.workload is not None
        self.workload["metadata"]["resourceVersion"] = str(next(self._numbers))


def _merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
