"""Finds slow ranks: those whose median compute time over a window of steps exceeds the gang's by a factor.

Every rank's compute time travels with each step's reduction, so all ranks know the same numbers and judge alike.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

# Steps of a window. Windows do not overlap: medians of a thousand ranks are worth their time only now and then.
WINDOW_STEPS = 20
# How many slow ranks are reported at most, the slowest first.
MOST = 8


class Straggler(msgspec.Struct, frozen=True, rename="camel"):
    """A slow rank. `index` is its pod's, which a rank table may place elsewhere; `seconds` and the gang's `median` are
    compute times of a step before the all-reduce; it has been slow since `since_step`.
    """

    rank: int
    index: int
    seconds: float
    median: float
    since_step: int


class Stragglers:
    """Judges the ranks at the end of each window.

    Hysteresis: a rank becomes slow above `factor` times the gang's median, and stays so until it is below the middle
    between that and 1. The gang's median is the lower one: of two ranks it is the faster one's, whose pace is possible.
    """

    def __init__(self, factor: float, indexes: Sequence[int]) -> None:
        """`indexes` are those of the ranks' pods, by rank."""
        self.factor, self._indexes = factor, tuple(indexes)
        self.ratios: tuple[float, ...] = ()
        self.found: tuple[Straggler, ...] = ()
        self._window = np.zeros((WINDOW_STEPS, len(self._indexes)), np.float32)
        self._filled = 0
        self._since: dict[int, int] = {}

    def add(self, step: int, seconds: Sequence[float] | NDArray[np.float32]) -> bool:
        """Add the compute seconds of all ranks in a step. True if the window ended with it, and the ranks were judged:
        `ratios` are then those of the ranks to the gang's median, `found` the slowest of the slow ranks.
        """
        self._window[self._filled] = seconds
        self._filled += 1
        if self._filled < WINDOW_STEPS:
            return False
        self._filled = 0
        self._judge(step)
        return True

    def _judge(self, step: int) -> None:
        medians = np.median(self._window, axis=0)
        middle = float(np.sort(medians)[(len(medians) - 1) // 2])
        if not (np.isfinite(medians).all() and middle > 0):  # clocks that stand still say nothing
            return
        self.ratios = tuple((medians / middle).tolist())
        calm = (1 + self.factor) / 2
        slow = [
            rank for rank, ratio in enumerate(self.ratios) if ratio > (calm if rank in self._since else self.factor)
        ]
        self._since = {rank: self._since.get(rank, step) for rank in slow}
        slowest = sorted(slow, key=lambda rank: -self.ratios[rank])[:MOST]
        self.found = tuple(
            Straggler(rank, self._indexes[rank], round(float(medians[rank]), 5), round(middle, 5), self._since[rank])
            for rank in slowest
        )

    def is_slow(self, rank: int) -> bool:
        """Whether the rank counts as slow."""
        return rank in self._since
