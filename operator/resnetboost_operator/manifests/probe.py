"""A probe: the pod of a rank in all that a scheduler looks at, whose container holds its device for a minute."""

from typing import Any

from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.manifests.pod import pod

Manifest = dict[str, Any]

PROBE_SECONDS = 60
COMMAND = ["sleep", str(PROBE_SECONDS)]
_OF_RANKS = ("args", "env", "envFrom", "ports", "readinessProbe", "lifecycle")


def probe(job: Job, stage: Stage, attempt: int, index: int, placement: Placement) -> Manifest:
    """The pod that finds out whether there is room for a rank of that index.

    It has no priority: it must not push anything aside.
    """
    found = pod(job, stage, attempt, index, placement)
    spec = {name: value for name, value in found["spec"].items() if name != "priorityClassName"}
    (container,) = spec["containers"]
    container = {name: value for name, value in container.items() if name not in _OF_RANKS} | {"command": COMMAND}
    return found | {"spec": spec | {"containers": [container], "terminationGracePeriodSeconds": 1}}
