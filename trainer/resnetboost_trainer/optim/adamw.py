"""Algorithm AdamW: Adam with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019, arXiv 1711.05101)."""

import math
from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.config import AdamW as Settings
from resnetboost_trainer.optim import groups
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, by_mean_gradient
from resnetboost_trainer.optim.groups import Groups


class Direction(nn.Cell):
    """m <- b1 m + (1 - b1) g,  s <- b2 s + (1 - b2) g^2;  flat gradient -> m' / (sqrt(s') + eps).

    m' = m / (1 - b1^t) and s' = s / (1 - b2^t) make up for means that begin at 0; t counts the updates, so that a step
    which is left out does not count. `mean` and `square`, both flat, and `updates` are the state.
    """

    def __init__(self, count: int, beta1: float, beta2: float, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.mean, self.square = _zeros("adam.mean", count), _zeros("adam.square", count)
        self.updates = _zeros("adam.updates", 1)

    def construct(self, gradient: Tensor) -> Tensor:
        """Shape (count,) -> (count,)."""
        updates = self.updates + 1
        mean = self.beta1 * self.mean + (1 - self.beta1) * gradient
        square = self.beta2 * self.square + (1 - self.beta2) * ops.square(gradient)
        ops.assign(self.updates, updates)
        ops.assign(self.mean, mean)
        ops.assign(self.square, square)
        return mean / _share(self.beta1, updates) / (ops.sqrt(square / _share(self.beta2, updates)) + self.epsilon)

    def state(self) -> list[Parameter]:
        """State for checkpoints."""
        return [self.mean, self.square, self.updates]


class AdamW(nn.Cell):
    """w <- (1 - lr wd) w - lr direction. Weight decay `wd` applies to the weights that Momentum decays too."""

    def __init__(self, parameters: Sequence[Parameter], settings: Settings, own: Groups | None = None) -> None:
        """`own`: the group of each parameter."""
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)
        self.decay = groups.decays(parameters, settings.weight_decay, own)
        self.rates = groups.rates(parameters, own)
        self.direction = Direction(self.count, settings.beta1, settings.beta2, settings.epsilon)

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (sum of sizes,), in the order of the parameters, and what follows it."""
        parts = ops.split(self.direction(gradients[: self.count]), self.sizes)
        for k in range(len(self.sizes)):
            weights, rate = self.parameters[k], learning_rate * self.rates[k]
            if self.decay[k] > 0:
                weights = weights * (1 - rate * self.decay[k])
            ops.assign(self.parameters[k], weights - rate * parts[k].reshape(self.shapes[k]))
        return learning_rate

    def state(self) -> list[Parameter]:
        """State for checkpoints."""
        return self.direction.state()


def _share(beta: float, updates: Tensor) -> Tensor:
    """1 - beta^t, without the cancellation that would cost half of float32's digits."""
    logarithm = math.log(beta) if beta > 0 else -100.0  # of 0, as far as float32 can tell: exp(-100) is 0 beside 1
    return -ops.expm1(updates * logarithm)


def _zeros(name: str, count: int) -> Parameter:
    return Parameter(Tensor(np.zeros(count), mindspore.float32), name=name, requires_grad=False)


def _build(context: BuildContext) -> Parts:
    settings = context.config.adamw
    assert settings is not None, "an AdamW stage has the block"
    return by_mean_gradient(context, AdamW(context.parameters, settings, context.groups))


ADAMW = Algorithm(build=_build, state_of=lambda config: config.algorithm)
