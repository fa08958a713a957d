"""Graphs for the line search: the weights as one vector, moving them along a direction, and the loss there.

f(w) = mean loss of the gang's batch + 1/2 <decay, w^2>,    decay: wd for weights that decay, 0 for the others
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.optim import groups


class Weights(nn.Cell):
    """Concatenates the weights: () -> one vector w (M,)."""

    def __init__(self, parameters: Sequence[Parameter], weight_decay: float) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.shapes = [tuple(parameter.shape) for parameter in parameters]
        self.sizes = [parameter.size for parameter in parameters]
        rates = groups.decays(parameters, weight_decay)
        decay = Tensor(np.repeat(np.array(rates, np.float32), self.sizes))
        self.decay = Parameter(decay, name="pca.decay", requires_grad=False)

    def construct(self) -> Tensor:
        return ops.concat([parameter.reshape(-1) for parameter in self.parameters])

    def penalty(self, whole: Tensor) -> Tensor:
        """Return the weight decay's part of f, (1,)."""
        return 0.5 * (self.decay * ops.square(whole)).sum().reshape(1)


class Place(nn.Cell):
    """Sets the weights: (w, D, t, v, a) -> the decay's part of f (1,) at w + t D - a v. Scalars are (1,)."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(auto_prefix=False)
        self.weights = weights

    def construct(self, start: Tensor, direction: Tensor, length: Tensor, residual: Tensor, rate: Tensor) -> Tensor:
        whole = start + length * direction - rate * residual
        parts = ops.split(whole, self.weights.sizes)
        for k in range(len(self.weights.sizes)):
            ops.assign(self.weights.parameters[k], parts[k].reshape(self.weights.shapes[k]))
        return self.weights.penalty(whole)


class Objective(nn.Cell):
    """Loss at the current weights: (images, labels, decay's part) -> f (1,), BN in training mode. A collective."""

    def __init__(self, network: nn.Cell, loss: Callable[..., Any], ranks: int) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss, self.scale = network, loss, 1.0 / ranks
        self.reduce = ops.AllReduce() if ranks > 1 else None

    def construct(self, images: Tensor, labels: Tensor, penalty: Tensor) -> Tensor:
        objective = self.loss(self.network(images), labels).reshape(1) + penalty
        return objective if self.reduce is None else self.reduce(objective) * self.scale
