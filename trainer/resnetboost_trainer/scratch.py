"""Scratch folders: a process has its own, and removes those that killed processes of the same user left behind.

A rank that is killed cleans nothing up, and in a pod that restarts in place, or on a machine with local runs, nobody
else would. The owner of a folder holds a lock on a file in it, which the system releases with the process.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = "in-use"


class Scratch:
    """A new private folder, locked until it is removed or the process ends. Raises OSError if there can be none."""

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        self.path, descriptor = _made(prefix)
        while not _is_there(self.path / _LOCK, descriptor):
            os.close(descriptor)
            self.path, descriptor = _made(prefix)
        self._lock: int | None = descriptor

    def remove(self) -> None:
        """Remove the folder with all that is in it. The second time it does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _made(prefix: str) -> tuple[Path, int]:
    """Make a folder and lock it. Another process may have removed it before it was locked."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    descriptor = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return path, descriptor


def _is_there(path: Path, descriptor: int) -> bool:
    """True if the path still names the open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def _sweep(prefix: str) -> None:
    """Remove the folders whose owners are gone. One without a lock file may have been made a moment ago."""
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.parent.lstat().st_uid == os.getuid():
                    shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
