"""Dynamic loss scale: as large a factor on the loss as the gradients bear (Micikevicius et al. 2018, §3.2).

A step whose gradient is not finite is left out and halves the factor; so many steps without one double it. The gradient
is the gang's mean, so that all ranks decide alike, and powers of two cost no bit of it.
"""

from typing import NamedTuple

import mindspore
import numpy as np
from mindspore import Parameter, Tensor

from resnetboost_trainer.config import DynamicLossScale
from resnetboost_trainer.writing import write

FACTOR = 2.0
LEAST, MOST = 1.0, 2.0**24


class Scale(NamedTuple):
    """The factor, and how many steps in a row were made with it."""

    factor: float
    steps: int


def after(scale: Scale, finite: bool, growth_steps: int) -> Scale:
    """What a step with such a gradient leaves. A factor that begins above the greatest does not grow."""
    if not finite:
        return Scale(max(scale.factor / FACTOR, LEAST), 0)
    if scale.steps + 1 < growth_steps:
        return Scale(scale.factor, scale.steps + 1)
    return Scale(min(scale.factor * FACTOR, max(scale.factor, MOST)), 0)


class Scaling:
    """A program's scale as parameters: its graph reads `factor`, a checkpoint has all of `parameters`."""

    def __init__(self, settings: DynamicLossScale) -> None:
        self.growth_steps = settings.growth_steps
        self.factor = _parameter("loss_scale.factor", settings.initial)
        self._steps = _parameter("loss_scale.steps", 0)
        self.parameters = [self.factor, self._steps]

    @property
    def scale(self) -> Scale:
        """As it is now, and in the checkpoint that is taken now."""
        return Scale(float(self.factor.asnumpy()), int(self._steps.asnumpy()))

    def leaves_out(self, finite: bool) -> bool:
        """Adapt to a step's gradient; whether the step is left out. With the least factor nothing is: it is no help."""
        before = self.scale
        now = after(before, finite, self.growth_steps)
        for parameter, value in zip(self.parameters, now, strict=True):
            write(parameter, np.asarray(value))
        return not finite and before.factor > LEAST


def _parameter(name: str, value: float) -> Parameter:
    return Parameter(Tensor(value, mindspore.float32), name=name, requires_grad=False)
