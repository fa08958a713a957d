"""Compiled graphs shared among the runs of tests with the same configuration: compiling is most of a short run.

They are kept in build/ until no test has used them for some days. test_kept_graphs.py tests that a kept graph gives the
bits of a compiled one; it does not use this module.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[2] / "build" / "graphs"
_PATTERN = "*/*.graph"
_KEPT_SECONDS = 3 * 24 * 3600.0
_given: dict[Path, Path] = {}


def give(stage: Path, settings: Any) -> None:
    """Copy the graphs known of such settings to the folder of a stage; existing ones stay.

    settings: a JSON value that covers what its graphs depend on. The trainer checks that by itself, and more: code,
    versions, kernels.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    _given[stage] = _known() / digest
    _copy(_given[stage], stage / "graphs")


def collect(stage: Path) -> None:
    """Keep the graphs that a stage has compiled, if it was given what was known."""
    if stage in _given:
        _copy(stage / "graphs", _given[stage])


def _copy(source: Path, target: Path) -> None:
    for path in source.glob(_PATTERN):
        copy = target / path.relative_to(source)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            begun = copy.with_name(f".{copy.name}.{os.getpid()}")
            shutil.copy(path, begun)
            begun.rename(copy)
        with contextlib.suppress(OSError):  # it is in use, whichever way it was copied
            os.utime(path)


@functools.cache
def _known() -> Path:
    """The folder of all graphs, without those that have not been used for long."""
    for path in _FOLDER.glob(f"*/{_PATTERN}"):
        with contextlib.suppress(OSError):  # another worker does the same
            if path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                path.unlink()
    return _FOLDER
