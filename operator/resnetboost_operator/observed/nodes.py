"""NodeView: a node read from its Kubernetes form, with the fields that planning needs."""

import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_operator.observed import pods
from resnetboost_operator.ranktable.chips import Chip

# Labels that Huawei's node labels and device plugin put on a node (ascend-for-volcano, accelerator-type).
LABEL_ACCELERATOR = "accelerator"
LABEL_ACCELERATOR_TYPE = "accelerator-type"
_CHIPS: dict[str, Chip] = {
    r"module|half|card": "910A",
    r"(module|card)-[0-9]+[bB]-[0-9]+": "910B",
    r"module-a3-.+": "A3",
}


class NodeView(msgspec.Struct, frozen=True):
    """A node's readiness, Ascend chip and the keys of its labels.

    `silent_since` (unix seconds) is when this operator first saw the node not ready, because the node's own times are
    by another machine's clock. `failing_until` (unix seconds) is the end of the operator's taint, None without it.
    """

    name: str
    ready: bool
    silent_since: float = 0.0
    chip: Chip | None = None
    label_keys: frozenset[str] = frozenset()
    failing_until: float | None = None


def view(node: Mapping[str, Any]) -> NodeView:
    """Read a node. One without a Ready condition is new, not lost."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((found for found in conditions if found.get("type") == "Ready"), {"status": "True"})
    labels = node["metadata"].get("labels") or {}
    keys = _shared(frozenset(labels))
    return NodeView(
        node["metadata"]["name"],
        ready.get("status") == "True",
        chip=_chip(labels),
        label_keys=keys,
        failing_until=_failing_until(node),
    )


def _failing_until(node: Mapping[str, Any]) -> float | None:
    """The end of our taint; 0 for a taint whose annotation somebody has changed."""
    taints = (node.get("spec") or {}).get("taints") or ()
    if all(taint.get("key") != names.TAINT_FAILING for taint in taints):
        return None
    try:
        return pods.seconds((node["metadata"].get("annotations") or {}).get(names.ANNOTATION_FAILING_UNTIL))
    except ValueError:
        return 0.0


@functools.lru_cache(maxsize=128)
def _shared(keys: frozenset[str]) -> frozenset[str]:
    """The same set for all nodes with the same keys: thousands of nodes have a few kinds of them."""
    return keys


def _chip(labels: Mapping[str, str]) -> Chip | None:
    """The chip by the node's labels. None without them, and for inference cards, which HCCL has no tables for."""
    accelerator = labels.get(LABEL_ACCELERATOR, "huawei-Ascend910")
    if accelerator == "huawei-npu":
        return "950"
    if accelerator != "huawei-Ascend910":
        return None
    form = labels.get(LABEL_ACCELERATOR_TYPE, "")
    return next((chip for pattern, chip in _CHIPS.items() if re.fullmatch(pattern, form)), None)
