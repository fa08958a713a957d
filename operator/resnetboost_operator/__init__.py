"""Runs ResNetBoostJobs as gangs of training pods, on Kubernetes or on this machine."""

from resnetboost_api import __version__ as __version__
