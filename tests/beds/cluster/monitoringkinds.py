"""The Prometheus operator's CRDs, from its Go module, with or without the operator (beds/prometheus/operator.py)."""

from collections.abc import Sequence
from pathlib import Path

from beds.cluster import build
from beds.cluster.controlplane import ControlPlane

# The kinds of the chart's objects.
KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
MODULE = "github.com/prometheus-operator/prometheus-operator"
_GROUP = "monitoring.coreos.com"
_FOLDER = "prometheus-operator-crd"


def create(plane: ControlPlane) -> None:
    """Create the CRDs of the chart's objects and wait until the API server serves them. Raises `ClusterError`."""
    _create(plane, [f"{kind.lower()}s" for kind in KINDS])


def create_all(plane: ControlPlane) -> None:
    """Create every CRD of the Prometheus operator, as it needs them itself."""
    files = (examples() / _FOLDER).glob("*.yaml")
    _create(plane, sorted(file.stem.partition("_")[2] for file in files))


def examples() -> Path:
    """The module's example manifests, which its documents tell administrators to apply."""
    return build.module("prometheus-operator", MODULE) / "example"


def _create(plane: ControlPlane, plurals: Sequence[str]) -> None:
    folder = examples() / _FOLDER
    plane.kubectl("create", *(f"--filename={folder}/{_GROUP}_{plural}.yaml" for plural in plurals))
    plane.until_established(*(f"crd/{plural}.{_GROUP}" for plural in plurals))
