"""Turns ResNetBoostJobs into gangs of training pods, on Kubernetes or on this machine; it trains nothing."""

__version__ = "0.1.0"
