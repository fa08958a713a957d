"""Runs ResNetBoostJobs as gangs of training pods, on Kubernetes or on this machine."""

__version__ = "0.1.0"
