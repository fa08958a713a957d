"""Taints on nodes that fail across jobs: which nodes get the operator's taint, for how long, and when it goes.

An annotation beside the taint has the time of its end, so that it outlives the jobs and the operator that set it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from resnetboost_api import names
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.nodes import NodeView

Manifest = Mapping[str, Any]
Effect = Literal["PreferNoSchedule", "NoSchedule"]

# As of a job's nodeExclusion that leaves everything out.
FAILURES = 2
HALF_LIFE_SECONDS = 3600
_ROUNDING = 0.5
# A taint whose end would move by less stays as it is: times in the API are whole seconds.
_SLACK_SECONDS = 60.0


def changes(nodes: Iterable[NodeView], points: Mapping[str, float], now: float) -> dict[str, float | None]:
    """The end (unix seconds) of the taint of each node that needs a new one; None where it must go.

    A node is tainted from FAILURES points on, rounded, until half of FAILURES is left.
    """
    found: dict[str, float | None] = {}
    for node in nodes:
        known, counted = node.failing_until, points.get(node.name, 0.0)
        if counted >= FAILURES - _ROUNDING:
            until = now + HALF_LIFE_SECONDS * math.log2(counted / (FAILURES / 2))
            if known is None or until > known + _SLACK_SECONDS:
                found[node.name] = until
        elif known is not None and known <= now:
            found[node.name] = None
    return found


def patch(node: Manifest, until: float | None, effect: Effect) -> dict[str, Any]:
    """The merge patch that gives the node our taint until then, or takes it away. Other taints stay.

    A list is patched as a whole: the resourceVersion makes the API server refuse the patch if the node has changed.
    """
    others = [taint for taint in node["spec"].get("taints") or () if taint.get("key") != names.TAINT_FAILING]
    ours = [{"key": names.TAINT_FAILING, "value": "true", "effect": effect}] if until is not None else []
    end = pods.timestamp(until) if until is not None else None
    metadata = {
        "resourceVersion": node["metadata"]["resourceVersion"],
        "annotations": {names.ANNOTATION_FAILING_UNTIL: end},
    }
    return {"metadata": metadata, "spec": {"taints": [*others, *ours] or None}}
