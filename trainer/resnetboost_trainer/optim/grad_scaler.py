"""The loss scale: a factor on the loss that keeps gradients from vanishing; steps that overflow are left out.

A step whose gradient is not finite is left out (Micikevicius et al. 2018, §3.2), whatever the algorithm: everything but
the scale and the count of steps stays as it was. It halves a dynamic scale, which so many steps without one double; a
fixed one stays what it is. The gradient's norm is the gang's, so that all ranks decide alike before any of them enters
another collective, and powers of two cost no bit of it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mindspore
import numpy as np
from mindspore import Parameter, Tensor

from resnetboost_trainer.config import Config, DynamicLossScale
from resnetboost_trainer.models.assign import write

FACTOR = 2.0
LEAST, MOST = 1.0, 2.0**24
MOST_STEPS = 2**24  # that a checkpoint's float32 counts one by one

# Steps that a fixed scale leaves out in a row: as many as take a dynamic one from the greatest to the least factor.
MOST_IN_A_ROW = 24


class LossScale(Protocol):
    """The loss scale of a program."""

    @property
    def factor(self) -> float | Parameter:
        """The factor in the graph."""
        ...

    @property
    def parameters(self) -> Sequence[Parameter]:
        """State for checkpoints."""
        ...

    @property
    def now(self) -> float:
        """The factor of the next step."""
        ...

    def leaves_out(self, finite: bool, now: float | None = None) -> bool:
        """Whether to leave a step with such a gradient out; not where that did not help before. Call it once a step.

        `now` is the step's factor, where it is known: reading it waits for the device.
        """
        ...


class Scale(NamedTuple):
    """The factor, and how many steps in a row were made with it."""

    factor: float
    steps: int


def of(config: Config) -> LossScale | None:
    """The scale of a stage that leaves steps out: a dynamic one, or a fixed one of Float16."""
    if config.dynamic_loss_scale is not None:
        return GradScaler(config.dynamic_loss_scale)
    return FixedScale(config.loss_scale) if config.precision == "Float16" and config.loss_scale > LEAST else None


def after(scale: Scale, finite: bool, growth_steps: int) -> Scale:
    """What a step with such a gradient leaves. A factor that begins above the greatest does not grow."""
    if not finite:
        return Scale(max(scale.factor / FACTOR, LEAST), 0)
    if scale.steps + 1 < growth_steps:
        return Scale(scale.factor, scale.steps + 1)
    return Scale(min(scale.factor * FACTOR, max(scale.factor, MOST)), 0)


class GradScaler:
    """A dynamic loss scale."""

    def __init__(self, settings: DynamicLossScale) -> None:
        self.growth_steps = min(settings.growth_steps, MOST_STEPS)
        self.factor = _parameter("loss_scale.factor", settings.initial)
        self._steps = _parameter("loss_scale.steps", 0)
        self.parameters = [self.factor, self._steps]

    @property
    def scale(self) -> Scale:
        """As it is now, and in the checkpoint that is taken now."""
        return Scale(self.now, int(self._steps.asnumpy()))

    @property
    def now(self) -> float:
        """As `LossScale` says."""
        return float(self.factor.asnumpy())

    def leaves_out(self, finite: bool, now: float | None = None) -> bool:
        """As `LossScale` says: nothing is left out with the least factor. It adapts to the step's gradient."""
        before = Scale(self.now if now is None else now, int(self._steps.asnumpy()))
        for parameter, old, new in zip(self.parameters, before, after(before, finite, self.growth_steps), strict=True):
            if new != old:
                write(parameter, np.asarray(new))
        return not finite and before.factor > LEAST


class FixedScale:
    """A loss scale that never changes."""

    def __init__(self, factor: float) -> None:
        self.factor = self.now = factor
        self._in_a_row = _parameter("loss_scale.left_out", 0)
        self.parameters = [self._in_a_row]

    def leaves_out(self, finite: bool, now: float | None = None) -> bool:
        """As `LossScale` says: no more than so many steps in a row."""
        before = int(self._in_a_row.asnumpy())
        in_a_row = 0 if finite else before + 1
        if in_a_row != before:
            write(self._in_a_row, np.asarray(in_a_row))
        return 0 < in_a_row <= MOST_IN_A_ROW


def _parameter(name: str, value: float) -> Parameter:
    return Parameter(Tensor(value, mindspore.float32), name=name, requires_grad=False)
