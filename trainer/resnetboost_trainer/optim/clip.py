"""Clips the norm of the gradient that an optimizer takes (Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063)."""

from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.optim.norms import squared_norm


class Clipped(nn.Cell):
    """An optimizer of flat gradients that scales those down whose Euclidean norm is above `clip_norm`.

    The norm is that of all parameters together, so that the direction stays; weight decay comes after it.
    """

    def __init__(self, optimizer: nn.Cell, clip_norm: float) -> None:
        """`optimizer.count` is the length of a gradient; other numbers may follow it."""
        super().__init__(auto_prefix=False)
        self.optimizer, self.clip_norm, self.count = optimizer, clip_norm, optimizer.count
        operators = library.usable() if mindspore.get_context("device_target") == "CPU" else None
        self.fused = operators is not None
        if operators is not None:
            self.limit, self.numbers = Tensor([clip_norm], mindspore.float32), Tensor([self.count], mindspore.int32)
            self.clip = primitive(operators, "clip_gradient", _first, _first)

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (parameters,), and what follows it."""
        if self.fused:
            return self.optimizer(self.clip(gradients, self.limit, self.numbers), learning_rate)
        gradients = gradients[: self.count]
        norm = ops.sqrt(squared_norm(gradients))
        share = ops.minimum(self.clip_norm / (norm + 1e-20), Tensor(1.0, mindspore.float32))
        return self.optimizer(gradients * share, learning_rate)


def _first(*given: Any) -> Any:
    return given[0]
