"""The record of a training step and of an evaluation: made once, read by the logger, Prometheus and metrics.csv."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

# An algorithm's report about a step: a struct of its module, which its `AlgorithmMetrics` reads.
Report = Any

# Values of a row of metrics.csv by column.
Row = dict[str, float | None]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step. Seconds are this rank's; everything else is the same on every rank.

    `step` counts finished steps. `data_wait_seconds` is part of `step_seconds`. `update_collective_seconds` is the time
    within the update that went into collectives; it is part of `collective_seconds`, not of `update_seconds`.
    `slowest_*` describe the step before, by its time until the all-reduce, after which all ranks show the same.
    `compute_seconds_by_rank` is that time of each rank, None where it is no sample: the step before compiled, or all
    ranks wait for each other while they compute.
    `stop`: some rank was asked to stop. `compiled`: a graph ran for the first time, so that times are no samples.
    `left_out`: the gradient overflowed at `loss_scale` and nothing was updated; the norm is then 0. `curvature` is the
    report of a curvature update, `update` that of the update rule. `noise` are the gradient's noise and signal, where
    they are measured.
    """

    step: int
    learning_rate: float
    loss: float
    accuracy: float
    gradient_norm: float
    loss_scale: float
    step_seconds: float
    data_wait_seconds: float
    gradient_seconds: float
    collective_seconds: float
    update_seconds: float
    update_collective_seconds: float
    slowest_rank: int | None
    slowest_compute_seconds: float | None
    compute_seconds_by_rank: NDArray[np.float32] | None = None
    compiled: bool
    left_out: bool
    stop: bool
    curvature: Report | None
    update: Report | None
    noise: Report | None = None

    @property
    def compute_seconds(self) -> float:
        """Forward and backward pass and update, without collectives outside of the gradient's graph."""
        return self.gradient_seconds + self.update_seconds

    @property
    def reports(self) -> tuple[Report, ...]:
        """The algorithm's reports about this step."""
        return tuple(report for report in (self.curvature, self.update) if report is not None)

    def row(self) -> Row:
        """The columns of metrics.csv that every algorithm has."""
        return {
            "step": self.step,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "learning_rate": self.learning_rate,
            "step_seconds": self.step_seconds,
            "data_wait_seconds": self.data_wait_seconds,
            "compute_seconds": self.compute_seconds,
            "collective_seconds": self.collective_seconds,
            "loss_scale": self.loss_scale,
            "left_out": self.left_out,
            "noise_trace": self.noise.trace if self.noise is not None else None,
            "noise_signal": self.noise.signal if self.noise is not None else None,
            "noise_scale": self.noise.scale if self.noise is not None else None,
        }


class EvaluationRecord(msgspec.Struct, frozen=True):
    """Top-1 and top-5 accuracy (0..1, to a millionth, for people's eyes) and mean cross entropy over the test set."""

    top1: float
    top5: float
    loss: float

    def row(self, prefix: str = "") -> Row:
        """The columns of metrics.csv, of the averaged weights with the prefix `ema_`."""
        return {f"{prefix}top1": self.top1, f"{prefix}top5": self.top5, f"{prefix}test_loss": self.loss}
