"""A node as the plan needs it, read from the Kubernetes form once; it decides nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator import pods


class NodeView(msgspec.Struct, frozen=True):
    """Whether a node's kubelet is heard of, and since when (unix seconds) it is so."""

    name: str
    ready: bool
    since: float


def view(node: Mapping[str, Any]) -> NodeView:
    """Read a node. One that tells no Ready condition is new, not lost."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((found for found in conditions if found.get("type") == "Ready"), {"status": "True"})
    since = pods.seconds(ready.get("lastTransitionTime"))
    return NodeView(node["metadata"]["name"], ready.get("status") == "True", since)
