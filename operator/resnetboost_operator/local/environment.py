"""Describes this machine and the installed versions, on which the results of a run depend."""

import os
import platform
from importlib import metadata
from pathlib import Path

from resnetboost_operator.local import machine

_PACKAGES = ("resnetboost-operator", "resnetboost-trainer", "mindspore", "numpy", "scikit-learn")


def describe() -> dict[str, str]:
    """Names and values in the order of the report."""
    found = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": f"{len(machine.usable_cores())} of {os.cpu_count()}",
        "python": platform.python_version(),
    }
    return found | {package: _version(package) for package in _PACKAGES}


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
