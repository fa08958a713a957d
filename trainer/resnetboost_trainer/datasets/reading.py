"""Whose fault it is that a file cannot be read: its own, for good, or that of a storage which may come back."""

import errno

from resnetboost_trainer.verdict import DataError, StorageError, TrainingError

# What is wrong with one file or its path, and will be at the next attempt too. Without a number: what is in it.
# Anything else (EIO, ESTALE, ETIMEDOUT, ENOTCONN, ...) is an outage.
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


def is_outage(error: Exception) -> bool:
    """Whether it is the storage's, so that the same file may be read later."""
    return isinstance(error, OSError) and error.errno not in _OF_THE_FILE


def failure(what: str, error: OSError) -> TrainingError:
    """What to raise where `what` went wrong: StorageError of an outage, which restarts the gang, else DataError."""
    told = f"{what}: {error.strerror or error}"
    if is_outage(error):
        return StorageError(f"{told}; mend the storage that it lies on, or wait until it is back")
    return DataError(told)
