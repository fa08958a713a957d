"""The schema of a ResNetBoostJob, shared by operator and trainer; imports neither, nor Kubernetes, nor MindSpore."""

__version__ = "0.1.0"
