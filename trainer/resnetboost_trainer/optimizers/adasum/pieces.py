"""Where the tensors of a flat vector lie in a piece of it; pure."""

import bisect
import itertools
from collections.abc import Sequence

import msgspec


class Cut(msgspec.Struct, frozen=True):
    """What a piece has of a tensor: [start, stop), counted from the start of the piece."""

    tensor: int
    start: int
    stop: int


def cuts(sizes: Sequence[int], start: int, stop: int) -> list[Cut]:
    """The tensors in [start, stop) of a vector of tensors of those sizes; padding behind the last belongs to none."""
    bounds = [0, *itertools.accumulate(sizes)]
    found = []
    for tensor in range(max(bisect.bisect_right(bounds, start) - 1, 0), len(sizes)):
        first, last = max(bounds[tensor], start), min(bounds[tensor + 1], stop)
        if bounds[tensor] >= stop:
            break
        if first < last:
            found.append(Cut(tensor, first - start, last - start))
    return found
