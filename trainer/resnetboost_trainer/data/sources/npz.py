"""Reads the arrays of an .npz image set and checks them; never unpickles.

Shapes and types are checked by the arrays' headers before anything is unpacked: a small file cannot claim much memory.
"""

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data import read_errors
from resnetboost_trainer.failures import DataError

Part = tuple[str, str]
PARTS: tuple[Part, ...] = (("x_train", "y_train"), ("x_test", "y_test"))
IMAGES = tuple(images for images, _ in PARTS)
MAX_CHANNELS = 4
# Every rank holds all images as float32; ImageNet-sized sets need another kind of data set.
LIMIT_BYTES = 8 << 30

_NPY: Any = np.lib.format  # numpy 1.26 has no types for it


class Arrays(NamedTuple):
    """Arrays of a data set: images uint8 or floating (n, h, w) or (n, h, w, c), and integer labels (n,)."""

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read(path: Path, num_classes: int, parts: Sequence[Part] = PARTS) -> Arrays:
    """Read and check the file's arrays, except the images' values; those of a part that is left out are empty.

    Raises DataError, StorageError.
    """
    names = [name for part in parts for name in part]
    try:
        with zipfile.ZipFile(path) as archive:
            headers = {name: _header(archive, path, name, names) for name in names}
            _check(path, headers, parts)
            found = [_values(archive, name) for name in names]
            arrays = Arrays(*found, *(array[:0] for array in found[: 4 - len(found)]))
    except (DataError, MemoryError):
        raise
    except OSError as error:
        raise read_errors.failure(f"{path}: cannot be read", error) from error
    except Exception as error:  # zipfile and numpy raise many kinds of errors on invalid data
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: not a readable .npz file ({reason}); write it with numpy.savez") from error
    for name, labels in (("y_train", arrays.y_train), ("y_test", arrays.y_test)):
        _check_labels(path, name, labels, num_classes)
    return arrays


def _header(archive: zipfile.ZipFile, path: Path, name: str, needed: Sequence[str]) -> _Header:
    """Read shape and type of an array. Raises DataError if it is missing or has another length."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        names = [item.removesuffix(".npy") for item in archive.namelist()[:8]]
        there = ", ".join(name[:40] if name.isprintable() else "?" for name in names) or "nothing"
        raise DataError(f"{path}: {name}: missing; needed are {', '.join(needed)}, there are {there}") from None
    with archive.open(info) as stream:
        file = cast(BinaryIO, stream)
        version = _NPY.read_magic(file)
        if version != (1, 0):  # other versions are for records, with headers of any length
            raise DataError(
                f"{path}: {name}: type of array unknown (.npy version {version}); write it with numpy.savez"
            )
        shape, _, dtype = _NPY.read_array_header_1_0(file)
        stored = info.file_size - file.tell()
    if not dtype.hasobject and stored != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{path}: {name}: damaged: shape {shape} of {dtype} does not fit its {stored} bytes")
    return _Header(shape, dtype)


def _values(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        return cast(NDArray[Any], _NPY.read_array(file, allow_pickle=False))


def _check(path: Path, headers: Mapping[str, _Header], parts: Sequence[Part]) -> None:
    images = [name for name, _ in parts]
    for name, header in headers.items():
        problem = _image_problem(header) if name in images else _label_problem(header)
        problem = "has no samples; at least one is needed" if 0 in header.shape[:1] else problem
        if problem:
            raise DataError(f"{path}: {name}: {problem}")
    for pixels, labels in parts:
        samples, count = headers[pixels].shape[0], headers[labels].shape[0]
        if samples != count:
            raise DataError(
                f"{path}: {pixels} has {samples} samples but {labels} has {count}; one label each is needed"
            )
    if len(images) > 1:
        _check_alike(path, *(headers[name] for name in images))
    needed = sum(4 * math.prod(headers[name].shape) for name in images)
    if needed > LIMIT_BYTES:
        raise DataError(
            f"{path}: {' and '.join(images)} need {needed / 2**30:.1f} GiB as float32;"
            f" at most {LIMIT_BYTES >> 30} GiB are held in memory, so use fewer or smaller images"
        )


def _image_problem(header: _Header) -> str | None:
    shape, dtype = header
    if dtype != np.uint8 and dtype.kind != "f":
        return f"type {dtype} is not one for images; uint8 or a floating type is needed"
    if len(shape) not in {3, 4} or min(shape[1:]) < 1:
        return f"shape {shape} is not (samples, height, width) or (samples, height, width, channels)"
    if len(shape) == 4 and shape[3] > MAX_CHANNELS:
        hint = ", e.g. x.transpose(0, 2, 3, 1)" if shape[1] <= MAX_CHANNELS else ""
        return f"shape {shape} has {shape[3]} channels; 1 to {MAX_CHANNELS} are needed, in the last place{hint}"
    return None


def _label_problem(header: _Header) -> str | None:
    shape, dtype = header
    if dtype.kind not in "iu":
        return f"type {dtype} is not one for labels; an integer type is needed"
    if len(shape) != 1:
        return f"shape {shape} is not (samples,); one class number for each image is needed"
    return None


def _check_alike(path: Path, train: _Header, test: _Header) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise DataError(f"{path}: x_test: images of shape {test.shape[1:]} differ from x_train's {train.shape[1:]}")
    if train.dtype != test.dtype:
        raise DataError(f"{path}: x_test: type {test.dtype} differs from x_train's {train.dtype}, so the scale may too")


def _check_labels(path: Path, name: str, labels: NDArray[Any], num_classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        raise DataError(
            f"{path}: {name}: label {labels[wrong[0]]} of sample {wrong[0]} is not one of"
            f" 0 to {num_classes - 1} (model.numClasses: {num_classes})"
        )
