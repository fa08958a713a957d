"""A learning rate range test (Smith 2017, arXiv 1506.01186): its curve, and the rate that follows from it."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from resnetboost_operator.errors import UserError

WINDOW = 20  # the loss is smoothed over a twentieth of the sweep to each side
LEAST_FALL = 0.05  # of the first loss: less is noise, and says nothing about rates
RETURN = 0.5  # the loss has diverged where it has come back by this part of its fall
FEWEST = 10  # steps with a finite loss


class Suggestion(msgspec.Struct, frozen=True):
    """The suggested rate, that of the steepest fall, and the one at which the loss diverged, if it did."""

    rate: float
    steepest: float
    diverged: float | None


class Sweep(msgspec.Struct, frozen=True):
    """Rates in ascending order, with the loss of the step that had each. At `broke_at` it was not finite any more."""

    rates: Sequence[float]
    losses: Sequence[float]
    broke_at: float | None = None

    @property
    def smoothed(self) -> Sequence[float]:
        """The mean of each loss and its neighbours, which weigh less the further they are away; it has no lag."""
        width = max(1, len(self.losses) // WINDOW)
        return [self._around(place, width) for place in range(len(self.losses))]

    def _around(self, place: int, width: int) -> float:
        near = range(max(0, place - width), min(len(self.losses), place + width + 1))
        weights = [width + 1 - abs(other - place) for other in near]
        return math.fsum(weight * self.losses[other] for weight, other in zip(weights, near, strict=True)) / sum(
            weights
        )

    def suggestion(self) -> Suggestion | None:
        """A tenth of the rate at which the smoothed loss diverges; the one where it falls most steeply if it does not.

        None if the loss never falls by more than noise.
        """
        curve = self.smoothed
        lowest = min(range(len(curve)), key=curve.__getitem__)
        if lowest == 0 or curve[0] - curve[lowest] < LEAST_FALL * curve[0]:
            return None
        slopes = [curve[place] - curve[place - 1] for place in range(1, lowest + 1)]
        steepest = self.rates[1 + min(range(lowest), key=slopes.__getitem__)]
        limit = curve[lowest] + RETURN * (curve[0] - curve[lowest])
        diverged = next((self.rates[k] for k in range(lowest, len(curve)) if curve[k] > limit), self.broke_at)
        return Suggestion(steepest if diverged is None else diverged / 10, steepest, diverged)


def read(file: Path) -> Sweep:
    """Read the trainer's file. Raises `UserError` for a sweep that is too short."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = [(float(row["learning_rate"]), float(row["loss"])) for row in csv.DictReader(lines)]
    finite = [(rate, loss) for rate, loss in rows if math.isfinite(loss)]
    if len(finite) < FEWEST:
        reason = f"the loss diverged after {len(finite)} steps, which are too few for a curve"
        raise UserError(f"lr-find: {reason}; begin at a lower rate with --from")
    broke_at = rows[-1][0] if len(finite) < len(rows) else None
    return Sweep([rate for rate, _ in finite], [loss for _, loss in finite], broke_at)
