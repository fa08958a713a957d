"""Batch normalization by the means and variances over all ranks' batches, as one rank with all images computes them.

It is made of MindSpore's plain operators and two collectives, and so runs on every device; MindSpore's own
SyncBatchNorm (2.10) is for Ascend alone. Forward, the ranks gather their means and sums of squares about them, and
combine them as Chan et al. (1979) do, without the cancellation of E[x^2] - E[x]^2. Backward, they sum the two sums that
the input's gradient needs. Gradients of scale and shift stay those of the rank, like all others until their mean.

Ranks whose collectives come in different orders would compute nonsense or wait for ever. Layers that follow each other
have one order anyway; a block's last normalization and that of its shortcut have none, so they pass a token: what takes
a token communicates after what returned it, and in the backward pass before it.
"""

from typing import Any

from mindspore import Tensor, nn, ops


class Synchronized(nn.Cell):
    """(x (n, c, h, w), gamma, beta, token) -> normalized x, token, mean, 1 / std, variance with divisor count - 1.

    All ranks have batches of one shape. x is float32. A collective, forward and backward.
    """

    def __init__(self, ranks: int, epsilon: float) -> None:
        super().__init__(auto_prefix=False)
        self.ranks, self.epsilon = ranks, epsilon
        self.gather, self.reduce = ops.AllGather(), ops.AllReduce()

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor, token: Tensor) -> tuple[Tensor, ...]:
        n, c, h, w = x.shape
        own_mean = x.mean((0, 2, 3))
        own_squares = ops.square(x - own_mean.reshape(1, -1, 1, 1)).sum((0, 2, 3))
        own = ops.depend(ops.concat((own_mean, own_squares)), token)
        gathered = self.gather(own.reshape(1, 2 * c))
        means, numbers = gathered[:, :c], n * h * w * self.ranks
        mean = means.mean(0)
        squares = gathered[:, c:].sum(0) + n * h * w * ops.square(means - mean).sum(0)
        inverse = ops.rsqrt(squares / numbers + self.epsilon)
        y = (x - mean.reshape(1, -1, 1, 1)) * (gamma * inverse).reshape(1, -1, 1, 1) + beta.reshape(1, -1, 1, 1)
        return y, gathered, mean, inverse, squares / max(numbers - 1, 1)

    def bprop(
        self,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        token: Tensor,
        out: tuple[Tensor, ...],
        dout: tuple[Tensor, ...],
    ) -> tuple[Any, ...]:
        n, c, h, w = x.shape
        dy, mean, inverse = dout[0], out[2].reshape(1, -1, 1, 1), out[3].reshape(1, -1, 1, 1)
        normalized = (x - mean) * inverse
        dgamma, dbeta = (dy * normalized).sum((0, 2, 3)), dy.sum((0, 2, 3))
        sums = self.reduce(ops.depend(ops.concat((dgamma, dbeta)), dout[1])) / (n * h * w * self.ranks)
        by_scale, by_shift = sums[:c].reshape(1, -1, 1, 1), sums[c:].reshape(1, -1, 1, 1)
        dx = (gamma.reshape(1, -1, 1, 1) * inverse) * (dy - by_shift - normalized * by_scale)
        return dx, dgamma, dbeta, ops.depend(ops.zeros_like(token), sums)
