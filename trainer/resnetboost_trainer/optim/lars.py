"""Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017, arXiv 1708.03888), before the momentum."""

import math
from collections.abc import Sequence

import mindspore
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.config import Lars as Settings
from resnetboost_trainer.config import Momentum as MomentumSettings
from resnetboost_trainer.optim import groups
from resnetboost_trainer.optim.groups import Group, Groups
from resnetboost_trainer.optim.norms import squared_norm
from resnetboost_trainer.optim.sgd import Momentum


class Lars(nn.Cell):
    """g <- trust |w| / (|g| + wd |w|) (g + wd w)  for every weight matrix by itself (equation 6), then Momentum.

    The scale is 1 where a norm is 0. BN's scale and shift and biases keep their gradients, as in NVIDIA's and MLPerf's
    recipes. The learning rate is applied after the momentum; in the paper's algorithm 1 it is a part of it.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        momentum: MomentumSettings,
        settings: Settings,
        own: Groups | None = None,
    ) -> None:
        """`own`: the group of each parameter."""
        super().__init__(auto_prefix=False)
        self.scaled = [groups.is_matrix(parameter) for parameter in parameters]
        self.decay = groups.decays(parameters, momentum.weight_decay, own)
        rates = groups.rates(parameters, own)
        # Matrices have their decay before it, by their local rate.
        later = [Group(rates[k], 0.0 if self.scaled[k] else self.decay[k]) for k in range(len(self.scaled))]
        self.momentum = Momentum(parameters, momentum, later)
        self.parameters = ParameterTuple(parameters)
        self.sizes = [math.prod(parameter.shape) for parameter in parameters]
        self.count = sum(self.sizes)
        self.trust = settings.trust_coefficient
        self.one = Tensor(1.0, mindspore.float32)

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (sum of sizes,), in the order of the parameters, and what follows it."""
        parts = ops.split(gradients[: self.count], self.sizes)
        scaled = []
        for k in range(len(self.sizes)):
            scaled.append(self.trusted(k, parts[k]) if self.scaled[k] else parts[k])
        return self.momentum(ops.concat(scaled), learning_rate)

    def trusted(self, k: int, gradient: Tensor) -> Tensor:
        """The flat gradient of a weight matrix with weight decay, by its local rate."""
        weights = self.parameters[k].reshape(-1)
        length, steepness = ops.sqrt(squared_norm(weights)), ops.sqrt(squared_norm(gradient))
        rate = self.trust * length / (steepness + self.decay[k] * length)
        rate = ops.where(ops.logical_and(length > 0, steepness > 0), rate, self.one)
        return rate * (gradient + self.decay[k] * weights)

    def state(self) -> list[Parameter]:
        """State for checkpoints."""
        return self.momentum.state()
