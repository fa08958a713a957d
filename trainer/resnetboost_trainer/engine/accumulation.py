"""Gradient accumulation: averages the flat buffers of a step's micro batches."""

import mindspore
from mindspore import Tensor, nn, ops


class Accumulation:
    """Mean of the first `values` numbers of `count` flat buffers [values ..., tail ...], with the last buffer's tail.

    With `norms` the last number of the tail is averaged too. Buffers are summed in order, so that the result is
    bit-identical.
    """

    def __init__(self, values: int, count: int, norms: bool = False) -> None:
        self._add, self._mean = _Sum(), _Mean(values, 1.0 / count, norms)
        self._sum: Tensor | None = None

    @property
    def begun(self) -> bool:
        """True if a buffer was added since the last mean."""
        return self._sum is not None

    def add(self, flat: Tensor) -> None:
        """Add a buffer before the last one."""
        self._sum = flat if self._sum is None else self._add(self._sum, flat)

    def mean(self, flat: Tensor) -> Tensor:
        """Mean of this buffer and all added since the last mean."""
        total, self._sum = self._sum, None
        return flat if total is None else self._mean(total, flat)


class _Sum(nn.Cell):
    """Two buffers of the same shape -> their sum."""

    def construct(self, total: Tensor, flat: Tensor) -> Tensor:
        return total + flat


class _Mean(nn.Cell):
    """A sum of buffers and the last one -> the mean of all, with the last one's tail, but its mean norm."""

    def __init__(self, values: int, scale: float, norms: bool) -> None:
        super().__init__()
        self.norms = norms
        self.values, self.scale = values, Tensor(scale, mindspore.float32)

    def construct(self, total: Tensor, flat: Tensor) -> Tensor:
        mean = (total[: self.values] + flat[: self.values]) * self.scale
        if self.norms:
            return ops.concat([mean, flat[self.values : -1], (total[-1:] + flat[-1:]) * self.scale])
        return ops.concat([mean, flat[self.values :]])
