"""Records of a step as the trainer's engine makes them, for tests of what is told of steps."""

from typing import Any

import msgspec

from resnetboost_trainer.metrics.record import StepRecord

_FIRST = StepRecord(
    step=1,
    learning_rate=0.1,
    loss=1.0,
    accuracy=0.5,
    gradient_norm=1.0,
    loss_scale=1.0,
    step_seconds=0.5,
    data_wait_seconds=0.0,
    gradient_seconds=0.4,
    collective_seconds=0.0,
    update_seconds=0.1,
    update_collective_seconds=0.0,
    slowest_rank=None,
    slowest_compute_seconds=None,
    compiled=False,
    left_out=False,
    stop=False,
    curvature=None,
    update=None,
)


def record(step: int = 1, **changes: Any) -> StepRecord:
    """The record of that step."""
    return msgspec.structs.replace(_FIRST, step=step, **changes)
