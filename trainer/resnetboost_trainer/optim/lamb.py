"""Algorithm LAMB: Adam's direction with layer-wise rates, for large batches (You et al. 2020, arXiv 1904.00962)."""

import math
from collections.abc import Sequence

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.config import Lamb as Settings
from resnetboost_trainer.optim import groups
from resnetboost_trainer.optim.adamw import Direction
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, by_mean_gradient
from resnetboost_trainer.optim.groups import Groups
from resnetboost_trainer.optim.norms import squared_norm


class Lamb(nn.Cell):
    """w <- w - lr (|w| / |r|) r  with  r = direction + wd w  for every weight matrix by itself (algorithm 2).

    The ratio is 1 where a norm is 0. BN's scale and shift and biases take Adam's direction as it is, without decay, as
    in NVIDIA's and timm's implementations.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: Settings, own: Groups | None = None) -> None:
        """`own`: the group of each parameter."""
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)
        self.scaled = [groups.is_matrix(parameter) for parameter in parameters]
        self.decay = groups.decays(parameters, settings.weight_decay, own)
        self.rates = groups.rates(parameters, own)
        self.direction = Direction(self.count, settings.beta1, settings.beta2, settings.epsilon)
        self.subtract, self.one = ops.AssignSub(), Tensor(1.0, mindspore.float32)

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (sum of sizes,), in the order of the parameters, and what follows it."""
        parts = ops.split(self.direction(gradients[: self.count]), self.sizes)
        for k in range(len(self.sizes)):
            weights = self.parameters[k].reshape(-1)
            update = parts[k] + self.decay[k] * weights if self.decay[k] > 0 else parts[k]
            ratio = self.trust(weights, update) if self.scaled[k] else self.one
            step = learning_rate * self.rates[k] * ratio * update
            self.subtract(self.parameters[k], step.reshape(self.shapes[k]))
        return learning_rate

    def trust(self, weights: Tensor, update: Tensor) -> Tensor:
        """The factor that makes the update of a weight matrix as long as its weights."""
        length, steepness = ops.sqrt(squared_norm(weights)), ops.sqrt(squared_norm(update))
        return ops.where(ops.logical_and(length > 0, steepness > 0), length / steepness, self.one)

    def state(self) -> list[Parameter]:
        """State for checkpoints."""
        return self.direction.state()


def _build(context: BuildContext) -> Parts:
    settings = context.config.lamb
    assert settings is not None, "a LAMB stage has the block"
    return by_mean_gradient(context, Lamb(context.parameters, settings, context.groups))


LAMB = Algorithm(build=_build, state_of=lambda config: config.algorithm)
