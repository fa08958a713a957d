"""The Prometheus operator's CRDs, from its Go module; the operator itself does not run."""

from beds.cluster import build
from beds.cluster.controlplane import ControlPlane

KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
_MODULE = "github.com/prometheus-operator/prometheus-operator"
_GROUP = "monitoring.coreos.com"


def create(plane: ControlPlane) -> None:
    """Create the CRDs and wait until the API server serves them. Raises `ClusterError`."""
    folder = build.module("prometheus-operator", _MODULE) / "example" / "prometheus-operator-crd"
    plurals = [f"{kind.lower()}s" for kind in KINDS]
    plane.kubectl("create", *(f"--filename={folder}/{_GROUP}_{plural}.yaml" for plural in plurals))
    plane.until_established(*(f"crd/{plural}.{_GROUP}" for plural in plurals))
