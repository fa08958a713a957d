"""Detects a training that diverges: a loss above a multiple of its running median for many steps in a row.

The losses are the gang's means, the same bits on every rank, so that all ranks decide alike without another exchange.
The watch is part of a checkpoint: a resumed run decides as an undisturbed one.
"""

import collections
import math
import statistics
from collections.abc import Mapping

import numpy as np

from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.config import LossLimit
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.failures import Diverged

# Losses in the median. Those above the limit are left out: a long divergence must not become its own measure.
WINDOW = 100
# There is no median before so many losses.
LEAST = 10

FILE = "losses.safetensors"


class LossWatch:
    """Compares each step's loss to the median of those before it, or to an untrained network's where that is lower.

    Without this bound a training that is ruined from its first steps on would never be above its own median.
    """

    def __init__(self, limit: LossLimit, untrained: float, communicator: Communicator) -> None:
        """`untrained` is the loss of an untrained network."""
        self.limit, self.untrained, self.communicator = limit, untrained, communicator
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._above = 0

    @property
    def usual(self) -> float:
        """What the next loss is compared to."""
        median = statistics.median(self._losses) if len(self._losses) >= LEAST else math.inf
        return min(median, self.untrained)

    def check(self, step: int, loss: float, remedy: str) -> None:
        """Take the finite loss of a step, counted from 1. Raises Diverged."""
        usual = self.usual
        if loss <= self.limit.loss_above * usual:
            self._losses.append(loss)
            self._above = 0
            return
        self._above += 1
        if self._above >= self.limit.for_steps:
            which = "an untrained network's" if usual == self.untrained else "the running median"
            limit = f"lossAbove: {self.limit.loss_above:g} times {which} {usual:.4g}"
            raise Diverged(f"the loss is {loss:.4g}, for {self._above} steps in a row above {limit}, {remedy}")

    def snapshot(self) -> dict[str, Arrays]:
        """Return the watch's file of a checkpoint on the leader, none on other ranks."""
        if not self.communicator.leads:
            return {}
        return {FILE: {"losses": np.array(self._losses, np.float32), "above": np.array([self._above], np.float32)}}

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Restore the watch; only the leader has `contents`. A collective. Without its file the watch begins anew."""
        saved = (contents or {}).get(FILE, {})
        losses = np.asarray(saved.get("losses", ()), np.float32).reshape(-1)[-WINDOW:]
        above = np.asarray(saved.get("above", (0,)), np.float32).reshape(-1)[:1]
        packed = np.zeros(2 + WINDOW, np.float32)
        packed[0], packed[1 : 1 + len(above)], packed[2 : 2 + len(losses)] = len(losses), above, losses
        packed = self.communicator.broadcast(packed)
        self._losses = collections.deque((float(loss) for loss in packed[2 : 2 + int(packed[0])]), maxlen=WINDOW)
        self._above = int(packed[1])
