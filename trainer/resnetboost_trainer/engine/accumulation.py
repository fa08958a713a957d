"""Makes of the flat buffers of a step's micro batches the one that their whole batch has; it knows no gradients."""

import mindspore
from mindspore import Tensor, nn, ops


class Accumulation:
    """The mean over `count` flat buffers [values ..., tail ...] of which the first `values` numbers are means.

    The tail is the last buffer's. Buffers are summed in their order, so that the same ones give the same bits.
    """

    def __init__(self, values: int, count: int) -> None:
        self._add, self._mean = _Sum(), _Mean(values, 1.0 / count)
        self._sum: Tensor | None = None

    @property
    def begun(self) -> bool:
        """Whether a buffer waits for the last one."""
        return self._sum is not None

    def add(self, flat: Tensor) -> None:
        """Take in a buffer before the last one."""
        self._sum = flat if self._sum is None else self._add(self._sum, flat)

    def mean(self, flat: Tensor) -> Tensor:
        """Of all that were added since the last mean, and this one; a single one is its own mean."""
        total, self._sum = self._sum, None
        return flat if total is None else self._mean(total, flat)


class _Sum(nn.Cell):
    """Two buffers of the same shape -> their sum."""

    def construct(self, total: Tensor, flat: Tensor) -> Tensor:
        return total + flat


class _Mean(nn.Cell):
    """A sum of buffers and the last one -> the mean of all, with the last one's tail."""

    def __init__(self, values: int, scale: float) -> None:
        super().__init__()
        self.values, self.scale = values, Tensor(scale, mindspore.float32)

    def construct(self, total: Tensor, flat: Tensor) -> Tensor:
        mean = (total[: self.values] + flat[: self.values]) * self.scale
        return ops.concat([mean, flat[self.values :]])
