"""Momentum SGD (Polyak 1964; Nesterov's form as an option), as MindSpore's ApplyMomentum defines it, in one graph."""

import math
from collections.abc import Sequence

from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.config import Momentum as Settings


class Momentum(nn.Cell):
    """v <- mu v + (g + wd w);  w <- w - lr v,  for every parameter of a network at once.

    Weight decay `wd` is coupled (it passes through the momentum) and applies to convolution and dense weights only:
    decaying BN's scale and shift or biases costs accuracy (He et al. 2019, "Bag of Tricks", §3.1).
    `velocity` is the only state.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: Settings) -> None:
        super().__init__()
        self.parameters = ParameterTuple(parameters)
        self.velocity = self.parameters.clone(prefix="velocity", init="zeros")
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.decay = [settings.weight_decay if decays(parameter) else 0.0 for parameter in parameters]
        self.momentum, self.nesterov = settings.momentum, settings.nesterov
        self.apply = ops.ApplyMomentum(use_nesterov=settings.nesterov)

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (sum of sizes,), in the order of the parameters."""
        parts = ops.split(gradients, self.sizes)
        for k in range(len(self.sizes)):
            gradient = parts[k].reshape(self.shapes[k])
            if self.decay[k] > 0:
                gradient = gradient + self.decay[k] * self.parameters[k]
            self.apply(self.parameters[k], self.velocity[k], learning_rate, gradient, self.momentum)
        return learning_rate

    def state(self) -> list[Parameter]:
        """What a checkpoint has to hold of this optimizer."""
        return list(self.velocity)


def decays(parameter: Parameter) -> bool:
    """Whether weight decay applies: weights of convolutions and dense layers have two or more dimensions."""
    return len(parameter.shape) > 1
