"""Layout of a flat vector's tensors in equal rows, which an adaptive sum distributes over the ranks.

Every row has an equal part of every tensor in the same columns, so the same code works on any rows. Padding, less than
one number per tensor and row, is zero.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Layout:
    """Tensors of `sizes` in rows of `share` numbers; part r of each tensor is in row `places[r]`."""

    def __init__(self, sizes: Sequence[int], places: Sequence[int]) -> None:
        self.sizes, self.places, self.rows = sizes, np.array(places), len(places)
        self.parts = [-(-size // self.rows) for size in sizes]
        self.bounds = np.array([0, *itertools.accumulate(self.parts)], np.int32)
        self.share, self.length = int(self.bounds[-1]), sum(sizes)

    def spread(self, values: NDArray[np.generic], rows: Floats) -> None:
        """Write a flat vector (length,) to its places in (rows, share); leaves padding unchanged."""
        for tensor, columns, full in self._tensors():
            numbers, whole = values[tensor], full * (columns.stop - columns.start)
            rows[self.places[:full], columns] = numbers[:whole].reshape(full, -1)
            if rest := len(numbers) - whole:
                rows[self.places[full], columns][:rest] = numbers[whole:]

    def collect(self, parts: Floats, values: Floats) -> None:
        """Write parts (rows, share), where row r has part r of each tensor, to a flat vector (length,)."""
        for tensor, columns, full in self._tensors():
            numbers, whole = values[tensor], full * (columns.stop - columns.start)
            numbers[:whole].reshape(full, -1)[:] = parts[:full, columns]
            if rest := len(numbers) - whole:
                numbers[whole:] = parts[full, columns][:rest]

    def _tensors(self) -> Iterator[tuple[slice, slice, int]]:
        """Yield for each non-empty tensor its slice of the vector, its columns, and the number of rows it fills."""
        ends = itertools.accumulate(self.sizes)
        for size, end, (first, last) in zip(self.sizes, ends, itertools.pairwise(self.bounds), strict=True):
            if size:
                yield slice(end - size, end), slice(first, last), size // (last - first)
