"""Gangs of kube-scheduler: PodGroups of scheduling.k8s.io, in Kubernetes 1.36 (alpha) and 1.37 (beta).

Two limits of 1.36: with inter-pod affinity, which `device.perNode` is, a gang that would fit is not always found a
place; and a group with a topology constraint preempts nobody.
"""

from typing import Any

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.observed.capabilities import KUBERNETES_1_36, KUBERNETES_1_37
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler, pod_group, topology_key

Manifest = dict[str, Any]

# The condition's name in 1.36 and in 1.37.
_CONDITIONS = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
_DEFAULT_NAMES = ("", "default-scheduler")
_INSTALL = (
    "enable the feature gates GenericWorkload and GangScheduling, and one of these APIs, of Kubernetes 1.36 or later"
)


def _pod_group(api: str, disruption_mode: Any, job: Job, stage: Stage, attempt: int) -> Manifest:
    spec: Manifest = {"schedulingPolicy": {"gang": {"minCount": stage.device_count}}, "disruptionMode": disruption_mode}
    if key := topology_key(job):
        spec["schedulingConstraints"] = {"topology": [{"key": key}]}
    if priority := job.spec.scheduling.priority_class_name:
        spec["priorityClassName"] = priority  # preemption goes by the group's priority, not by the pods'
    return pod_group(api, job, stage, attempt, spec)


def _placed(placement: Placement, job: Job, stage: Stage, attempt: int) -> Placement:
    """The pods keep their affinity to the topology key: an API server without the gate TopologyAwareWorkloadScheduling
    drops the group's constraint without a word. Where it is in force, every place tried is within one value of the
    label, so the affinity excludes nothing more.

    With `perNode` the constraint is all there is: that affinity would then depend on the order in which the scheduler
    tries the pods, which is the same every time, and a group tried in the wrong order would wait for ever.
    """
    key = placement.topology_key if job.spec.device.per_node is None else ""
    return replace(placement, pod_group=names.gang(job.name, stage.name, attempt), topology_key=key)


def _why(group: PodGroupView) -> tuple[str, str] | None:
    for kind in _CONDITIONS:
        found = group.conditions.get(kind)
        if found is not None and found.status == "False":
            return found.reason, found.message
    return None


def _scheduler(name: str, api: str, disruption_mode: Any) -> GangScheduler:
    return GangScheduler(
        name=name,
        api=api,
        scheduler_names=_DEFAULT_NAMES,
        pod_group=lambda job, stage, attempt: _pod_group(api, disruption_mode, job, stage, attempt),
        placed=_placed,
        why=_why,
        install=_INSTALL,
    )


KUBERNETES_137 = _scheduler("kube-scheduler 1.37", KUBERNETES_1_37, {"all": {}})
KUBERNETES_136 = _scheduler("kube-scheduler 1.36", KUBERNETES_1_36, "PodGroup")
