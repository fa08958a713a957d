"""Nodes that exist only as objects: always ready, with room for many pods, without a kubelet."""

from collections.abc import Mapping
from typing import Any

KWOK = {"kwok.x-k8s.io/node": "fake"}  # annotation of nodes whose pods kwok manages
RESOURCE = "example.com/dev"  # devices of nodes for gangs
ROOM = {"cpu": "1000", "memory": "4Ti", "pods": "2000"}


def manifest(
    name: str,
    allocatable: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Manifest of a node that is ready from the start."""
    room = {**ROOM, **allocatable}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "status": {
            "allocatable": room,
            "capacity": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "There is no kubelet."}],
        },
    }
