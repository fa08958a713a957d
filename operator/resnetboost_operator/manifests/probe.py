"""A probe: the pod of a rank in all that a scheduler looks at, whose container holds its device for a minute."""

from typing import Any

from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.manifests.pod import pod

Manifest = dict[str, Any]

PROBE_SECONDS = 60
COMMAND = ["sleep", str(PROBE_SECONDS)]
# What a scheduler, kubelet and Pod Security look at. Nothing that a container must wait for: a volume whose secret is
# gone would keep the device from the gang.
_KEPT = ("name", "image", "imagePullPolicy", "resources", "securityContext")
# Where the container cannot start at all, kubelet ends the pod then.
_DEADLINE_SECONDS = 2 * PROBE_SECONDS


def probe(job: Job, stage: Stage, attempt: int, index: int, placement: Placement) -> Manifest:
    """The pod that finds out whether there is room for a rank of that index.

    It has no priority: it must not push anything aside.
    """
    found = pod(job, stage, attempt, index, placement)
    spec = {name: value for name, value in found["spec"].items() if name not in ("priorityClassName", "volumes")}
    (container,) = spec["containers"]
    spec["containers"] = [{name: container[name] for name in _KEPT if name in container} | {"command": COMMAND}]
    spec |= {"terminationGracePeriodSeconds": 1, "activeDeadlineSeconds": _DEADLINE_SECONDS}
    return found | {"spec": spec}
