"""A real Kubernetes control plane on this machine, for tests and experiments; it runs no containers.

The real scheduler binds pods to nodes that exist only as objects. In place of a kubelet, the test patches the pods'
status, or kwok does (see `ControlPlane.add_kwok_nodes`).
"""

from beds.cluster.audit import Request
from beds.cluster.build import unavailable
from beds.cluster.controlplane import ControlPlane
from beds.cluster.errors import ClusterError

__all__ = ["ClusterError", "ControlPlane", "Request", "unavailable"]
