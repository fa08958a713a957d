"""WorkloadView: Kueue's Workload of a job, with the fields that planning needs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_operator.observed import conditions
from resnetboost_operator.observed.conditions import Condition

Manifest = Mapping[str, Any]


class WorkloadView(msgspec.Struct, frozen=True):
    """A job's Workload. `version` is its resourceVersion; `active` is its spec's.

    `priority_class` and `priority_kind` are of its priorityClassRef, '' without.

    `admission` and `checks` (admissionChecks) are as in its status, empty without. `reclaimed` is the count given back,
    `admitted` the count that quota is reserved for, None without.
    """

    namespace: str
    name: str
    uid: str
    version: str
    job_name: str
    job_uid: str
    queue: str
    priority_class: str
    count: int
    active: bool
    deleting: bool
    reclaimed: int
    admission: Manifest
    checks: tuple[Manifest, ...]
    conditions: Mapping[str, Condition]
    generation: int = 0
    priority_kind: str = ""
    admitted: int | None = None

    def is_true(self, kind: str) -> bool:
        """Whether the condition of that type is True."""
        found = self.conditions.get(kind)
        return found is not None and found.status == "True"


def view(workload: Manifest) -> WorkloadView:
    """Read a Workload. Raises an exception for one that no ResNetBoostJob owns."""
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    owner = next(found for found in metadata["ownerReferences"] if found.get("kind") == names.KIND)
    return WorkloadView(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        job_name=owner["name"],
        job_uid=owner["uid"],
        queue=spec.get("queueName", ""),
        priority_class=(spec.get("priorityClassRef") or {}).get("name", ""),
        count=sum(int(found.get("count", 0)) for found in spec.get("podSets") or ()),
        active=spec.get("active", True),
        deleting="deletionTimestamp" in metadata,
        reclaimed=sum(int(found.get("count", 0)) for found in status.get("reclaimablePods") or ()),
        admission=status.get("admission") or {},
        checks=tuple(status.get("admissionChecks") or ()),
        conditions=conditions.read(status),
        generation=metadata.get("generation", 0),
        priority_kind=(spec.get("priorityClassRef") or {}).get("kind", ""),
        admitted=_admitted(status.get("admission") or {}),
    )


def _admitted(admission: Manifest) -> int | None:
    counts = [int(found["count"]) for found in admission.get("podSetAssignments") or () if "count" in found]
    return sum(counts) if counts else None
