"""Conditions of foreign objects (PodGroups, Workloads), read from their Kubernetes form."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Condition(msgspec.Struct, frozen=True):
    """One condition. Texts are untrusted. `generation`: the object's that it was decided for, 0 if unknown."""

    status: str
    reason: str
    message: str
    time: str = ""
    generation: int = 0


def read(status: Mapping[str, Any]) -> dict[str, Condition]:
    """The conditions of an object's status by type."""
    return {
        found["type"]: Condition(
            found.get("status", ""),
            found.get("reason", ""),
            found.get("message", ""),
            found.get("lastTransitionTime", ""),
            found.get("observedGeneration", 0),
        )
        for found in status.get("conditions") or ()
        if "type" in found
    }
