"""Versions of Python, the trainer and its libraries, for checkpoints and model cards; imports none of the libraries."""

import functools
import importlib.metadata
import platform

from resnetboost_trainer import __version__

PACKAGES = ("mindspore", "numpy", "pillow", "simplejpeg")


@functools.cache
def installed() -> dict[str, str]:
    """Return installed versions by package name."""
    found = {"python": platform.python_version(), "resnetboost-trainer": __version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
