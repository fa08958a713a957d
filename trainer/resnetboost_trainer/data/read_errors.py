"""Classifies read errors: a bad file, which stays bad, or an outage of the storage or the node."""

import errno
import itertools
import os
from pathlib import Path
from typing import TypeGuard

from resnetboost_trainer.failures import DataError, OutOfMemoryError, StorageError, TrainingError

# Errors of one file or its path, which the next attempt would meet again; None is bad content.
# Any other (EIO, ESTALE, ETIMEDOUT, ENOTCONN, ...) is an outage, of the storage unless listed in _NOT_STORAGE.
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
    errno.EINVAL,  # the reader of a damaged archive seeks to a negative offset
)
_AWAY = (StorageError, "repair the storage it is on, or wait until it is back")
_NOT_STORAGE: dict[int | None, tuple[type[TrainingError], str]] = {
    # This process's own limit: the next attempt would open as many files.
    errno.EMFILE: (DataError, "raise the limit of open files (ulimit -n), or write fewer MindRecord files"),
    errno.ENFILE: (StorageError, "the whole node has too many open; close some there, or raise its fs.file-max"),
    errno.ENOMEM: (OutOfMemoryError, "give the pod more memory"),
}


_NAMED = 4  # names of a folder's entries in a message
_COUNTED = 10_000
_LONGEST_NAME = 60


def listed(folder: Path) -> str:
    """Describe a folder's content for a message: some names and the number of others. Raises OSError."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in itertools.islice(entries, _COUNTED) if not entry.name.startswith("."))
    shown = [_shown(name) for name in names[:_NAMED]]
    if len(names) >= _COUNTED - 1:
        shown.append("many more")
    elif len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    return ", ".join(shown) or "nothing"


def _shown(name: str) -> str:
    name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return name if name.isprintable() else ascii(name)


def is_outage(error: Exception) -> TypeGuard[OSError]:
    """True if the file may be fine, so that a later read or one on another node may succeed."""
    return isinstance(error, OSError) and error.errno not in _OF_THE_FILE


def failure(what: str, error: OSError) -> TrainingError:
    """Return the error to raise: one that restarts the gang for an outage, if that may help, else a DataError."""
    message = f"{what}: {error.strerror or error}"
    if not is_outage(error):
        return DataError(message)
    kind, remedy = _NOT_STORAGE.get(error.errno, _AWAY)
    return kind(f"{message}; {remedy}")
