"""A real Kubernetes node on this machine, for tests: real pods from images of this tree, in namespaces of their own."""

from beds.kubelet.bed import Bed, unavailable

__all__ = ["Bed", "unavailable"]
