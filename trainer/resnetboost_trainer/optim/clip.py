"""Clips the norm of the gradient that an optimizer takes (Pascanu, Mikolov & Bengio 2013, arXiv 1211.5063)."""

import mindspore
from mindspore import Tensor, nn, ops

from resnetboost_trainer.optim.norms import squared_norm


class Clipped(nn.Cell):
    """An optimizer of flat gradients that scales those down whose Euclidean norm is above `clip_norm`.

    The norm is that of all parameters together, so that the direction stays; weight decay comes after it.
    """

    def __init__(self, optimizer: nn.Cell, clip_norm: float) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer, self.clip_norm = optimizer, clip_norm

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """One update from the flat gradient (parameters,)."""
        norm = ops.sqrt(squared_norm(gradients))
        share = ops.minimum(self.clip_norm / (norm + 1e-20), Tensor(1.0, mindspore.float32))
        return self.optimizer(gradients * share, learning_rate)
