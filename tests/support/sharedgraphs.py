"""Compiled graphs shared among the ranks of one worker's tests; compiling would take half of a short run.

test_kept_graphs.py tests that a kept graph gives the bits of a compiled one; it does not use this module.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

_PATTERN = "*/*.graph"


def give(stage: Path) -> None:
    """Copy known graphs to the folder of a stage; existing ones stay."""
    _copy(_known(), stage / "graphs")


def collect(stage: Path) -> None:
    """Collect the graphs that a stage has kept."""
    _copy(stage / "graphs", _known())


def _copy(source: Path, target: Path) -> None:
    for path in source.glob(_PATTERN):
        copy = target / path.relative_to(source)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


@functools.cache
def _known() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="graphs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
