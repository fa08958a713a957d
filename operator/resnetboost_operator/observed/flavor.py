"""Flavor: what a ResourceFlavor of Kueue puts on the pods that are admitted to it."""

from collections.abc import Mapping
from typing import Any

import msgspec

Manifest = Mapping[str, Any]


class Flavor(msgspec.Struct, frozen=True):
    """Labels of the flavor's nodes, and the tolerations of its pods."""

    node_labels: Mapping[str, str] = {}
    tolerations: tuple[Manifest, ...] = ()


def view(flavor: Manifest) -> Flavor:
    """Read a ResourceFlavor."""
    spec = flavor.get("spec") or {}
    return Flavor(dict(spec.get("nodeLabels") or {}), tuple(spec.get("tolerations") or ()))
