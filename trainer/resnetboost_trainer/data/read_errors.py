"""Whose fault it is that a file cannot be read: its own, for good, or that of a storage or node it is read on."""

import errno
import itertools
import os
from pathlib import Path
from typing import TypeGuard

from resnetboost_trainer.failures import DataError, OutOfMemoryError, StorageError, TrainingError

# What is wrong with one file or its path, and will be at the next attempt too. Without a number: what is in it.
# Anything else (EIO, ESTALE, ETIMEDOUT, ENOTCONN, ...) is an outage, of the storage but for what is in _NOT_STORAGE.
_OF_THE_FILE = (
    None,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENXIO,
    errno.EINVAL,  # a damaged archive makes its reader seek to before the beginning
)
_AWAY = (StorageError, "mend the storage that it lies on, or wait until it is back")
_NOT_STORAGE: dict[int | None, tuple[type[TrainingError], str]] = {
    # This process's own limit: at the next attempt it has as many files to open.
    errno.EMFILE: (DataError, "raise the limit of open files (ulimit -n), or write fewer MindRecord files"),
    errno.ENFILE: (StorageError, "the whole node has too many open; close some there, or raise its fs.file-max"),
    errno.ENOMEM: (OutOfMemoryError, "give the pod more memory"),
}


_NAMED = 4  # of what is in a folder
_COUNTED = 10_000
_LONGEST_NAME = 60


def listed(folder: Path) -> str:
    """What is in a folder, for people: some names and how many more. Raises OSError."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in itertools.islice(entries, _COUNTED) if not entry.name.startswith("."))
    told = [_shown(name) for name in names[:_NAMED]]
    if len(names) >= _COUNTED - 1:
        told.append("many more")
    elif len(names) > _NAMED:
        told.append(f"{len(names) - _NAMED} more")
    return ", ".join(told) or "nothing"


def _shown(name: str) -> str:
    name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return name if name.isprintable() else ascii(name)


def is_outage(error: Exception) -> TypeGuard[OSError]:
    """Whether it is no fault of the file, which may be read later or elsewhere."""
    return isinstance(error, OSError) and error.errno not in _OF_THE_FILE


def failure(what: str, error: OSError) -> TrainingError:
    """What to raise where `what` went wrong: of an outage what restarts the gang, if that may help, else DataError."""
    told = f"{what}: {error.strerror or error}"
    if not is_outage(error):
        return DataError(told)
    kind, remedy = _NOT_STORAGE.get(error.errno, _AWAY)
    return kind(f"{told}; {remedy}")
