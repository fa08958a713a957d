"""Conditions of foreign objects (PodGroups, Workloads), read from their Kubernetes form."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Condition(msgspec.Struct, frozen=True):
    """One condition. Texts are untrusted."""

    status: str
    reason: str
    message: str
    time: str = ""


def read(status: Mapping[str, Any]) -> dict[str, Condition]:
    """The conditions of an object's status by type."""
    return {
        found["type"]: Condition(
            found.get("status", ""),
            found.get("reason", ""),
            found.get("message", ""),
            found.get("lastTransitionTime", ""),
        )
        for found in status.get("conditions") or ()
        if "type" in found
    }
