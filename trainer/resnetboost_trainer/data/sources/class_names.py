"""Reads a file of class names: a name on each line."""

from pathlib import Path

from resnetboost_trainer.data import read_errors

_MOST_NAMES_BYTES = 1 << 18


def read(path: Path) -> tuple[str, ...]:
    """Return the lines of a file of class names; none if it is missing, too long or not text.

    Raises StorageError if the storage is away: checkpoints would lack the names for good.
    """
    try:
        with path.open("rb") as file:
            return parse(file.read(_MOST_NAMES_BYTES + 1))
    except OSError as error:
        if read_errors.is_outage(error):
            raise read_errors.failure(f"{path}: cannot be read", error) from None
        return ()


def parse(data: bytes) -> tuple[str, ...]:
    """Return the lines of a file of class names; none if it is too long or not text."""
    try:
        lines = data.decode().splitlines() if len(data) <= _MOST_NAMES_BYTES else []
    except UnicodeDecodeError:
        return ()
    return tuple(line.strip() for line in lines if line.strip())
