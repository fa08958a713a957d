"""Data-parallel training of residual networks with MindSpore. Knows nothing of Kubernetes."""

__version__ = "0.1.0"
