"""Ownership of Workloads and PodGroups: reads those that a ResNetBoostJob controls and takes no others for ours.

Anybody may write labels and owner references, so nothing in an object is trusted to have the right form.
"""

from collections.abc import Mapping
from typing import Any

from resnetboost_api import names
from resnetboost_operator.observed import podgroup as pod_groups
from resnetboost_operator.observed import workload as workloads
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.observed.workload import WorkloadView

Manifest = Mapping[str, Any]

# What a view of an object raises that has another form.
_MALFORMED = (KeyError, ValueError, TypeError, AttributeError, StopIteration)


def workload(obj: Manifest) -> WorkloadView | None:
    """View of a job's Workload; None for a foreign one."""
    try:
        found = workloads.view(obj)
        return found if _owner(obj) == (found.job_name, found.job_uid) else None
    except _MALFORMED:
        return None


def pod_group(obj: Manifest, api: str) -> PodGroupView | None:
    """View of a job's PodGroup in that API; None for a foreign one.

    A group has exactly one valid name, and names are unique in a namespace: no other can pass for it.
    """
    try:
        found = pod_groups.view(obj, api)
        name, uid = _owner(obj)
        stage = obj["metadata"]["labels"][names.LABEL_STAGE]
        is_ours = uid == found.job_uid and found.name == names.gang(name, stage, found.attempt)
        return found if is_ours else None
    except _MALFORMED:
        return None


def _owner(obj: Manifest) -> tuple[str, str]:
    """Name and uid of the ResNetBoostJob that controls the object. Raises ValueError without one."""
    for owner in obj["metadata"]["ownerReferences"]:
        if owner.get("controller") and (owner.get("apiVersion"), owner.get("kind")) == (names.API_VERSION, names.KIND):
            return owner["name"], owner["uid"]
    raise ValueError(f"{obj['metadata']['name']} has no owner of kind {names.KIND}")
