"""Locates the built library of C++ operators and checks that it is usable; must not import MindSpore."""

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path

# A fixed path, not configurable: a loaded library runs with all rights of the process.
FILE = Path(__file__).resolve().with_name("operators.so")
MACHINES = ("x86_64", "AMD64")

log = logging.getLogger(__name__)


@functools.cache
def usable() -> Path | None:
    """Return the library's path, or None if it is missing or broken; logs the reason once."""
    reason = problem()
    if reason is None:
        log.info("no C++ operators here: MindSpore's own run instead; `make setup` builds them where g++ is")
        return None
    if reason:
        log.warning("the C++ operators cannot be used, so MindSpore's own run instead: %s", reason)
        return None
    return FILE


def problem() -> str | None:
    """Return why the library cannot be used: "" if it can, None if there is no library."""
    if platform.machine() not in MACHINES or not FILE.exists():
        return None
    try:
        # Load MindSpore's oneDNN first, so that our library resolves to it by name.
        ctypes.CDLL(str(onednn()))
        ours = ctypes.CDLL(str(FILE))
        ours.resnetboost_sources.restype = ctypes.c_char_p
        found, fits = ours.resnetboost_sources().decode(), ours.resnetboost_begin(threads()) == 0
    except (OSError, AttributeError, UnicodeDecodeError) as error:
        return str(error)
    if found != digest():
        return f"{FILE.name} is of other sources; run `python -m resnetboost_trainer.kernels.build`"
    return "" if fits else "MindSpore's oneDNN is of another version"


def threads() -> int:
    """Return OMP_NUM_THREADS, like the other libraries of the process, or the number of usable cores.

    Python's copy of the environment is used, because MindSpore sets the C variable to 1 when it starts.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(asked)) if asked.isdecimal() else len(os.sched_getaffinity(0))


def onednn() -> Path:
    """Return the path of MindSpore's oneDNN, whether it exists or not."""
    found = importlib.util.find_spec("mindspore")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else Path("mindspore")
    return folder / "lib" / "libdnnl.so.3"


def sources() -> Sequence[Path]:
    """List the C++ files in order."""
    return sorted(path for path in FILE.parent.iterdir() if path.suffix in (".cpp", ".h"))


def digest() -> str:
    """Return the SHA-256 of the sources; a library contains the one that it was built from."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources())).hexdigest()
