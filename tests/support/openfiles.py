"""Limits the number of open files, to test errors that are no file's fault."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """Allow at most that many more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_first_free() + more if more else 0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _first_free() -> int:
    """The descriptor the next opened file will have; lower ones are in use."""
    number = os.open("/", os.O_RDONLY)
    os.close(number)
    return number
