"""Data-parallel training of residual networks with MindSpore. Knows nothing of Kubernetes."""

from resnetboost_api import __version__ as __version__
