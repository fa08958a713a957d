"""Data-parallel training of residual networks with MindSpore; it must know nothing of Kubernetes."""

__version__ = "0.1.0"
