"""The prediction of every test image, gathered over the gang, and its statistics: pure arithmetic on arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resnetboost_api.evaluation_details import BINS, Bin, ClassResult
from resnetboost_trainer.failures import NumericsError

Floats = NDArray[np.float32]
Counts = NDArray[np.int64]


class Predictions:
    """The predicted class of each of `n` test images, and its probability.

    Each image has a place of its own, which only the rank that evaluates it fills, so that the gang's sum is exact and
    counts none twice. Classes as float32, the type of collectives, are exact up to 2**24.
    """

    def __init__(self, n: int) -> None:
        self._found = np.zeros((3, n), np.float32)

    def add(self, indices: Counts, counted: Floats, logits: Floats) -> None:
        """Add a batch; `counted` is 0 for padding and for images that cannot be used. Raises NumericsError."""
        chosen = counted > 0
        values = logits[chosen].astype(np.float64)
        if not np.isfinite(values).all():
            raise NumericsError("the network's outputs for the test images are not finite; train with a lower rate")
        above = values - values.max(1, keepdims=True)
        self._found[0, indices[chosen]] = values.argmax(1)  # of equal ones the first, as for top-1
        self._found[1, indices[chosen]] = 1 / np.exp(above).sum(1)
        self._found[2, indices[chosen]] = 1

    def gather(self, total: Callable[[Floats], Floats]) -> None:
        """Take over the other ranks' predictions; `total` sums a vector over the gang. A collective."""
        self._found = total(self._found.reshape(-1)).reshape(3, -1)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which images count (n,)."""
        found: NDArray[np.bool_] = self._found[2] > 0
        return found

    @property
    def classes(self) -> Counts:
        """The predicted class of each image that counts."""
        found: Counts = self._found[0, self.counted].astype(np.int64)
        return found

    @property
    def confidences(self) -> NDArray[np.float64]:
        """The probability of that class."""
        found: NDArray[np.float64] = self._found[1, self.counted].astype(np.float64)
        return found


def confusion(labels: NDArray[np.integer[Any]], predicted: Counts, classes: int) -> Counts:
    """The pairs of label and predicted class that occur, with their number: (pairs, 3)."""
    pairs, counts = np.unique(labels.astype(np.int64) * classes + predicted, return_counts=True)
    return np.stack([pairs // classes, pairs % classes, counts], 1)


def by_class(pairs: Counts, names: Sequence[str]) -> tuple[ClassResult, ...]:
    """The result of each class, from the pairs of `confusion`."""
    images, taken, right = (np.zeros(len(names), np.int64) for _ in range(3))
    np.add.at(images, pairs[:, 0], pairs[:, 2])
    np.add.at(taken, pairs[:, 1], pairs[:, 2])
    hits = pairs[pairs[:, 0] == pairs[:, 1]]
    right[hits[:, 0]] = hits[:, 2]
    return tuple(
        ClassResult(name=name, images=int(own), recall=_share(hit, own), precision=_share(hit, as_it))
        for name, own, as_it, hit in zip(names, images, taken, right, strict=True)
    )


def calibration(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[float, tuple[Bin, ...]]:
    """The expected calibration error, and its bins: 15 of equal width, each without its lower end (Guo et al. 2017)."""
    place = np.clip(np.ceil(confidences * BINS).astype(np.int64) - 1, 0, BINS - 1)
    images = np.bincount(place, minlength=BINS)
    confident, correct = (np.bincount(place, values, BINS) for values in (confidences, right.astype(np.float64)))
    error = float(np.abs(confident - correct).sum() / max(1, len(confidences)))
    bins = (
        Bin(images=int(count), confidence=_share(sure, count), accuracy=_share(hit, count))
        for count, sure, hit in zip(images, confident, correct, strict=True)
    )
    return error, tuple(bins)


def _share(part: float, whole: int) -> float | None:
    return min(1.0, float(part) / int(whole)) if whole else None
