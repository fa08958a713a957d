"""Definitions of foreign kinds, installed in a cluster for a while."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from beds.cluster import ControlPlane
from beds.operator.wait import eventually

_FOLDER = Path(__file__).parent
KUEUE = _FOLDER / "kueue.yaml"
VOLCANO = _FOLDER / "volcano.yaml"
COSCHEDULING = _FOLDER / "coscheduling.yaml"


@contextlib.contextmanager
def served(plane: ControlPlane, definitions: Path) -> Iterator[None]:
    """The API server serves these kinds; afterwards they and their objects are gone."""
    plane.kubectl("create", f"--filename={definitions}")
    specs = [found["spec"] for found in yaml.safe_load_all(definitions.read_text())]
    wanted = {(f"/apis/{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"]) for spec in specs}
    try:
        eventually(lambda: _missing(plane, wanted), lambda missing: not missing, f"{definitions.stem} is served")
        yield
    finally:
        plane.kubectl("delete", f"--filename={definitions}")


def add_flavor(plane: ControlPlane, name: str, **spec: Any) -> None:
    """Create a ResourceFlavor, or replace one of an earlier test."""
    apply(plane, "ResourceFlavor", {"name": name}, spec=spec)


def add_priority_class(plane: ControlPlane, name: str, value: int) -> None:
    """Create a WorkloadPriorityClass, or replace one of an earlier test."""
    apply(plane, "WorkloadPriorityClass", {"name": name}, value=value)


def apply(plane: ControlPlane, kind: str, metadata: dict[str, str], **fields: Any) -> None:
    """Apply one of Kueue's objects."""
    manifest = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, **fields}
    plane.kubectl("apply", "--filename=-", input=json.dumps(manifest))


def _missing(plane: ControlPlane, wanted: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Kinds that are not in the discovery, or whose storage the API server is still setting up."""
    return sorted(
        found for found in wanted if found[1] not in _plurals(plane, found[0]) or not _is_listed(plane, found)
    )


def _is_listed(plane: ControlPlane, kind: tuple[str, str]) -> bool:
    return plane.client.answers("/".join(kind))


def _plurals(plane: ControlPlane, path: str) -> set[str]:
    try:
        return {found["name"] for found in json.loads(plane.client.get(path))["resources"]}
    except OSError:
        return set()
