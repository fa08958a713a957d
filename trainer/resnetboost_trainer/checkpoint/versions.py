"""The versions of what trains, for checkpoints and model cards; it imports none of it."""

import functools
import importlib.metadata
import platform

from resnetboost_trainer import __version__

PACKAGES = ("mindspore", "numpy", "pillow", "simplejpeg")


@functools.cache
def installed() -> dict[str, str]:
    """Version by name; a package that is not installed is left out."""
    found = {"python": platform.python_version(), "resnetboost-trainer": __version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
