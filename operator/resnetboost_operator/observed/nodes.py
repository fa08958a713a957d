"""A node as the plan needs it, read from the Kubernetes form once; it decides nothing."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

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
    """Whether a node's kubelet is heard of, and which Ascend chip it tells.

    `silent_since` (unix seconds) is when this operator first saw that it is not: the times that a node tells are by
    another machine's clock.
    """

    name: str
    ready: bool
    silent_since: float = 0.0
    chip: Chip | None = None


def view(node: Mapping[str, Any]) -> NodeView:
    """Read a node. One that tells no Ready condition is new, not lost."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((found for found in conditions if found.get("type") == "Ready"), {"status": "True"})
    chip = _chip(node["metadata"].get("labels") or {})
    return NodeView(node["metadata"]["name"], ready.get("status") == "True", chip=chip)


def _chip(labels: Mapping[str, str]) -> Chip | None:
    """As far as the node says; a card may also be one for inference, which HCCL has no tables for."""
    accelerator = labels.get(LABEL_ACCELERATOR, "huawei-Ascend910")
    if accelerator == "huawei-npu":
        return "950"
    if accelerator != "huawei-Ascend910":
        return None
    form = labels.get(LABEL_ACCELERATOR_TYPE, "")
    return next((chip for pattern, chip in _CHIPS.items() if re.fullmatch(pattern, form)), None)
