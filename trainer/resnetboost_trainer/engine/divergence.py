"""Detects a training that diverges: a loss above a multiple of its running median for many steps in a row.

The losses are the gang's means, the same bits on every rank, so that all ranks decide alike without another exchange.
The watch is part of a checkpoint: a resumed run decides as an undisturbed one.
"""

import collections
import statistics
from collections.abc import Mapping

import numpy as np

from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.config import LossLimit
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.failures import Diverged

# Losses in the median. Those above the limit are left out: a long divergence must not become its own measure.
WINDOW = 100
# No limit before so many losses: the first steps of a network are no measure.
LEAST = 10

FILE = "losses.safetensors"


class LossWatch:
    """Compares each step's loss to the median of those before it."""

    def __init__(self, limit: LossLimit, communicator: Communicator) -> None:
        self.limit, self.communicator = limit, communicator
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._above = 0

    def check(self, step: int, loss: float, remedy: str) -> None:
        """Take the finite loss of a step, counted from 1. Raises Diverged."""
        median = statistics.median(self._losses) if len(self._losses) >= LEAST else None
        if median is None or loss <= self.limit.loss_above * median:
            self._losses.append(loss)
            self._above = 0
            return
        self._above += 1
        if self._above >= self.limit.for_steps:
            seen = f"the loss of step {step} is {loss:.4g}, and {self._above} steps in a row were above lossAbove"
            raise Diverged(f"{seen}: {self.limit.loss_above:g} times the median {median:.4g} of those before {remedy}")

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
