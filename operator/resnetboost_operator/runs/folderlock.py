"""The lock of a folder that only one process may write."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from resnetboost_operator.errors import UserError

_LOCK = ".lock"


@contextlib.contextmanager
def held(folder: Path, user: str) -> Iterator[None]:
    """Lock the folder for a `user`: a run or a sweep. Raises `UserError` if another process has the lock."""
    with (folder / _LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"{folder} is in use by another resnetboost {user} (process {file.read(20).strip()}); "
                "wait for it or choose another folder with --out"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def is_held(folder: Path) -> bool:
    """True while a process has the lock; needs no right to write in the folder."""
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
