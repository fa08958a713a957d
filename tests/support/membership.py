"""How each gang scheduler tells which pods are one gang: an independent reading of its objects, for tests."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from resnetboost_operator.observed import capabilities
from resnetboost_operator.observed.capabilities import Capabilities

Manifest = Mapping[str, Any]


class Scheduler(NamedTuple):
    """`scheduling`: what a job writes to get it. `group`: the name of a pod's group. `members`: how many it counts, by
    the pod and the groups by name.
    """

    name: str
    scheduling: dict[str, Any]
    capabilities: Capabilities
    group: Callable[[Manifest], str]
    members: Callable[[Manifest, Mapping[str, Manifest]], int]


def _serving(*apis: str) -> Capabilities:
    return Capabilities(pod_groups=frozenset(apis), gangs_enabled=True)


def _in_kubernetes(pod: Manifest) -> str:
    return str(pod["spec"]["schedulingGroup"]["podGroupName"])


def _in_volcano(pod: Manifest) -> str:
    return str(pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"])


def _in_coscheduling(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"])


def _in_yunikorn(pod: Manifest) -> str:
    """Pods are of one gang if both their application and their task group are the same."""
    group = pod["metadata"]["annotations"]["yunikorn.apache.org/task-group-name"]
    return f"{pod['metadata']['labels']['applicationId']}/{group}"


def _gang_count(pod: Manifest, groups: Mapping[str, Manifest]) -> int:
    return int(groups[_in_kubernetes(pod)]["spec"]["schedulingPolicy"]["gang"]["minCount"])


def _task_group_count(pod: Manifest, groups: Mapping[str, Manifest]) -> int:
    annotations = pod["metadata"]["annotations"]
    (group,) = json.loads(annotations["yunikorn.apache.org/task-groups"])
    assert group["name"] == annotations["yunikorn.apache.org/task-group-name"]
    return int(group["minMember"])


SCHEDULERS = (
    Scheduler("kubernetes-1.37", {}, _serving(capabilities.KUBERNETES_1_37), _in_kubernetes, _gang_count),
    Scheduler("kubernetes-1.36", {}, _serving(capabilities.KUBERNETES_1_36), _in_kubernetes, _gang_count),
    Scheduler(
        "volcano",
        {"schedulerName": "volcano"},
        _serving(capabilities.VOLCANO),
        _in_volcano,
        lambda pod, groups: int(groups[_in_volcano(pod)]["spec"]["minMember"]),
    ),
    Scheduler(
        "coscheduling",
        {"schedulerName": "our-own"},
        _serving(capabilities.COSCHEDULING),
        _in_coscheduling,
        lambda pod, groups: int(groups[_in_coscheduling(pod)]["spec"]["minMember"]),
    ),
    Scheduler("yunikorn", {"schedulerName": "yunikorn"}, Capabilities(), _in_yunikorn, _task_group_count),
)
