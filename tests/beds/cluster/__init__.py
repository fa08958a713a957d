"""A real Kubernetes control plane on this machine, for tests and for trying things out; it runs no containers.

Pods are bound by the real scheduler to nodes that are only objects. What a kubelet would do to them, the test does by
patching their status, or kwok does (see `ControlPlane.add_kwok_nodes`).
"""

from beds.cluster.audit import Request
from beds.cluster.build import unavailable
from beds.cluster.controlplane import ControlPlane
from beds.cluster.errors import ClusterError

__all__ = ["ClusterError", "ControlPlane", "Request", "unavailable"]
