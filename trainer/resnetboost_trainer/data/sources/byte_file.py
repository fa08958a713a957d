"""Reads a whole file, unpacking it if it is a gzip file."""

import gzip
from pathlib import Path

from resnetboost_trainer.data import read_errors
from resnetboost_trainer.failures import DataError

_MOST_UNPACKED = 1 << 30  # MNIST's largest file has 47 MB; a megabyte of gzip may be a gigabyte of zeros


def read(path: Path) -> bytes:
    """Return the file's content, unpacked. Raises DataError for a damaged gzip file, StorageError."""
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return _unpacked(path, file)
    except (EOFError, gzip.BadGzipFile, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise DataError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
    except FileNotFoundError:
        raise DataError(f"{path}: missing; fetch it, or set dataset.path to the folder that has it") from None
    except OSError as error:
        raise read_errors.failure(f"{path}: cannot be read", error) from None


def _unpacked(path: Path, file: gzip.GzipFile) -> bytes:
    data = bytearray()
    while part := file.read(1 << 20):
        data += part
        if len(data) > _MOST_UNPACKED:
            raise DataError(f"{path}: more than {_MOST_UNPACKED} bytes when unpacked; fetch it again")
    return bytes(data)
