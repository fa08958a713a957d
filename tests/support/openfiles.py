"""Limits the number of open files, to test errors that are no file's fault."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """No more than so many can be open at once besides those that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_first_free() + more if more else 0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _first_free() -> int:
    """The number that the next file to be opened will have; lower ones are taken."""
    number = os.open("/", os.O_RDONLY)
    os.close(number)
    return number
