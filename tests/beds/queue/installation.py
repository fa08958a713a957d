"""Installs the stubs of Kueue's CRDs in a cluster, removes them, and creates its cluster-wide objects."""

import json
from pathlib import Path
from typing import Any

from beds.cluster import ControlPlane
from beds.operator.wait import eventually

CRDS = Path(__file__).with_name("crds.yaml")
_ROOT = "/apis/kueue.x-k8s.io/v1beta2"


def install(plane: ControlPlane) -> None:
    """Create the CRDs and wait until the API server serves them."""
    plane.kubectl("apply", "--server-side", f"--filename={CRDS}")
    plane.kubectl("wait", "--for=condition=Established", f"--filename={CRDS}")
    eventually(lambda: is_served(plane), bool, "Workloads are served")


def uninstall(plane: ControlPlane) -> None:
    """Remove the CRDs, with all their objects."""
    plane.kubectl("delete", "--ignore-not-found", f"--filename={CRDS}")
    eventually(lambda: is_served(plane), lambda served: not served, "Workloads are not served any more")


def is_served(plane: ControlPlane) -> bool:
    """Whether the API server serves Workloads."""
    if not plane.client.answers(_ROOT):
        return False
    return any(found["name"] == "workloads" for found in json.loads(plane.client.get(_ROOT))["resources"])


def add_flavor(plane: ControlPlane, name: str, **spec: Any) -> None:
    """Create a ResourceFlavor, or replace one of an earlier test."""
    _apply(plane, "ResourceFlavor", name, {"spec": spec})


def add_priority_class(plane: ControlPlane, name: str, value: int) -> None:
    """Create a WorkloadPriorityClass, or replace one of an earlier test."""
    _apply(plane, "WorkloadPriorityClass", name, {"value": value})


def _apply(plane: ControlPlane, kind: str, name: str, fields: dict[str, Any]) -> None:
    manifest = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}
    plane.kubectl("apply", "--filename=-", input=json.dumps(manifest))
