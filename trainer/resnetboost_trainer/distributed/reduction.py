"""Averages gradients over the ranks: one all-reduce of the flat buffer that a step's gradient graph returns.

The buffer is float32: [gradients ..., loss, accuracy, tail ...]. Ranks exchange small numbers in its tail, which is
summed and not averaged.
"""

import math
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.kernels import arrays, library

# Indices of the scalars that a reduction returns; the summed tail starts at TAIL.
NORM_SQUARED, LOSS, ACCURACY, TAIL = range(4)


def scalars_of(flat: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return what `Reduction` does for a single rank, without a graph: [squared norm, loss, accuracy, tail ...].

    `flat` is the rank's buffer with `count` gradients. The sum has the same bits every time. BLAS would be as fast, but
    its threads go on spinning beside those of the next step.
    """
    operators, norm = library.usable(), np.empty(1, np.float32)
    if operators is not None:
        arrays.call(operators, "weighted_squares", flat[:count], np.ones(1, np.float32), norm)
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # not finite: the caller decides what to do
            norm[0] = np.square(flat[:count]).sum()
    return np.concatenate([norm, flat[count:]])


class Reduction(nn.Cell):
    """Mean over the ranks: flat buffer -> (mean gradients, [squared gradient norm, loss, accuracy, summed tail ...]).

    The squared norm doubles as the finite check: it is not finite if any gradient is not.
    """

    def __init__(self, parameters: Sequence[Parameter], world_size: int, summed: bool = False) -> None:
        """`summed`: the buffer already holds the sum over the ranks."""
        super().__init__()
        self.count = sum(math.prod(parameter.shape) for parameter in parameters)
        self.scale = 1.0 / world_size
        self.reduce = ops.AllReduce() if world_size > 1 and not summed else None

    def construct(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Shape (parameters + 2 + t,) -> (parameters,), (3 + t,)."""
        if self.reduce is not None:
            flat = self.reduce(flat)
        mean = flat[: self.count + 2] * self.scale
        gradients = mean[: self.count]
        norm = ops.square(gradients).sum().reshape(1)
        return gradients, ops.concat([norm, mean[self.count :], flat[self.count + 2 :]])
