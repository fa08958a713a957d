"""The lock of a folder that only one process may write."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from resnetboost_operator.errors import UserError

_LOCK = ".lock"
_LOOK_SECONDS = 0.01
_LOOKS = 20  # `is_held` of another process has the lock for less than a millisecond


@contextlib.contextmanager
def held(folder: Path, user: str) -> Iterator[None]:
    """Lock the folder for a `user`: a run or a sweep. Raises `UserError` if another process has the lock."""
    with (folder / _LOCK).open("a+") as file:
        if not _taken(file):
            file.seek(0)
            raise UserError(
                f"{folder} is in use by another resnetboost {user} (process {file.read(20).strip()}); "
                "wait for it or choose another folder with --out"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _taken(file: IO[str]) -> bool:
    """Take the lock, also if a process that only looks at it has it for a moment."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def exists(folder: Path) -> bool:
    """True if the folder was locked before."""
    return (folder / _LOCK).exists()


def is_held(folder: Path) -> bool | None:
    """True while a process has the lock, None if the lock cannot be read; needs no right to write in the folder."""
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
