"""A real Kubernetes node on this machine, for tests: real pods from this tree's images, in Linux namespaces."""

from beds.kubelet.bed import Bed, unavailable

__all__ = ["Bed", "unavailable"]
