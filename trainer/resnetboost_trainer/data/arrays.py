"""Turns the arrays of a data source into the parts of a data set in memory, normalised by channel."""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data import preprocessing
from resnetboost_trainer.data.augmentation import ArrayAugmentation
from resnetboost_trainer.data.dataset import ArraySplit, Channels
from resnetboost_trainer.data.preprocessing import Preparation, Scale
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.failures import DataError

_CHUNK = 1024  # samples worked on at a time, so that temporary arrays stay small


class Parts(NamedTuple):
    """Training and test images, and the preparation that turns a picture into such an image.

    Mean and deviation are the training images' own, or those of a trained network.
    """

    train: ArraySplit
    test: ArraySplit
    preparation: Preparation


def normalised(
    arrays: Arrays,
    source: str,
    augmentation: ArrayAugmentation | None,
    names: tuple[str, ...],
    known: Preparation | None,
    white: float | None = None,
) -> Parts:
    """Normalise arrays of any type and scale at once, whose data source may declare the value of `white`.

    Raises DataError, naming `source`, for values not finite; UnknownScale.
    """
    x_train, x_test = _as_nchw(arrays.x_train), _as_nchw(arrays.x_test)
    for name, images in (("x_train", x_train), ("x_test", x_test)):
        _check_finite(source, name, images)
    prepared = _prepared(x_train, preprocessing.scale(arrays.x_train.dtype, x_train, white), names, known)
    blank = _normalise(x_train, x_test, prepared.channels)
    train = ArraySplit(x_train, arrays.y_train.astype(np.int32), None, blank, augmentation)
    test = ArraySplit(x_test, arrays.y_test.astype(np.int32))
    return Parts(train, test, prepared)


def pixels(
    arrays: Arrays, augmentation: ArrayAugmentation | None, names: tuple[str, ...], known: Preparation | None
) -> Parts:
    """Keep arrays of bytes as bytes, a quarter of the memory; they are normalised when they are used.

    Raises UnknownScale.
    """
    x_train, x_test = (
        np.ascontiguousarray(x.reshape(*x.shape[:3], -1).transpose(0, 3, 1, 2)) for x in (arrays[0], arrays[2])
    )
    prepared = _prepared(x_train, Scale("Bytes", preprocessing.BYTE), names, known)
    train = ArraySplit(x_train, arrays.y_train.astype(np.int32), prepared.channels, None, augmentation)
    test = ArraySplit(x_test, arrays.y_test.astype(np.int32), prepared.channels)
    return Parts(train, test, prepared)


def digest(arrays: Arrays) -> str:
    """Return a hash of shapes, types and values."""
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(f"{array.shape}{array.dtype.str}".encode())
        found.update(np.ascontiguousarray(array).view(np.uint8).data)
    return found.hexdigest()


def _as_nchw(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Convert (n, h, w) or (n, h, w, c) of any type to float32 (n, c, h, w)."""
    with np.errstate(over="ignore"):  # _check_finite refuses infinite values
        if images.ndim == 3:
            return images[:, np.newaxis].astype(np.float32, order="C")
        return images.transpose(0, 3, 1, 2).astype(np.float32, order="C")


def _check_finite(source: str, name: str, images: NDArray[np.float32]) -> None:
    for start in range(0, len(images), _CHUNK):
        finite = np.isfinite(images[start : start + _CHUNK]).all(axis=(1, 2, 3))
        if not finite.all():
            sample = start + int(np.argmin(finite))
            raise DataError(f"{source}: {name}: sample {sample} holds a value that is not finite as float32")


def _normalise(x_train: NDArray[np.float32], x_test: NDArray[np.float32], channels: Channels) -> NDArray[np.float32]:
    """Subtract each channel's mean and divide by its deviation, in place. Returns a normalised zero by channel (c,)."""
    for channel, (mean, deviation) in enumerate(zip(*channels, strict=True)):
        for images in (x_train, x_test):
            images[:, channel] -= mean
            images[:, channel] /= deviation
    blank: NDArray[np.float32] = -channels.mean / channels.deviation
    return blank


def _prepared(
    images: NDArray[np.float32] | NDArray[np.uint8], scale: Scale, names: tuple[str, ...], known: Preparation | None
) -> Preparation:
    """Mean and standard deviation of each channel of the training images (n, c, h, w), or the known ones."""
    moments = np.array([_moments(images[:, channel]) for channel in range(images.shape[1])], np.float32)
    own = preprocessing.of_arrays(images.shape[2:], Channels(moments[:, 0], moments[:, 1]), scale, names)
    return preprocessing.fitted(own, known)


def _moments(values: NDArray[np.float32] | NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation over all values; the deviation of a constant is 1."""
    chunks = [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
    mean = sum(float(chunk.sum(dtype=np.float64)) for chunk in chunks) / values.size
    squares = sum(float(np.square(np.subtract(chunk, mean, dtype=np.float64)).sum()) for chunk in chunks)
    deviation = float(np.sqrt(squares / values.size))
    return mean, deviation if deviation > 1e-6 * abs(mean) else 1.0
