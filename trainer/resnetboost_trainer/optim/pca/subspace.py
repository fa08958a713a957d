"""Graphs that project onto the principal subspace (a sum over the ranks) and back (a gathering of their parts).

Each rank has a range of columns of P (k, M); ranges have equal width and the last ones are zero-padded, so any number
of ranks works. Inputs and outputs are complete vectors, the same bits on every rank.
"""

import math

import mindspore
import msgspec
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer.distributed.communicator import Floats


def width(numbers: int, ranks: int) -> int:
    """Return the number of a rank's columns of P, including padding."""
    return math.ceil(numbers / ranks)


class Basis(msgspec.Struct, frozen=True):
    """This rank's columns (k, width) of the components, of M `numbers`, and the explained variance (0..1)."""

    columns: Floats
    numbers: int
    explained: float


class Columns(nn.Cell):
    """This rank's columns of P (k, width) as a parameter that graphs share."""

    def __init__(self, columns: Floats, numbers: int, rank: int, ranks: int) -> None:
        super().__init__()
        self.values = Parameter(Tensor.from_numpy(columns), name="pca.columns", requires_grad=False)
        self.numbers, self.rank, self.ranks = numbers, rank, ranks
        self.dimensions, self.width = columns.shape


class Project(nn.Cell):
    """Projects x (M,) -> this rank's part of P x (k,), to be summed over the ranks."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.start = min(columns.rank * columns.width, columns.numbers)
        self.own = min(columns.numbers - self.start, columns.width)  # may be 0 on the last ranks

    def construct(self, x: Tensor) -> Tensor:
        if self.own == 0:
            return ops.zeros(self.columns.dimensions, mindspore.float32)
        own = x[self.start : self.start + self.own]
        if self.own < self.columns.width:
            own = ops.concat([own, ops.zeros(self.columns.width - self.own, mindspore.float32)])
        return ops.matmul(self.columns.values, own.reshape(-1, 1)).reshape(-1)


class Expand(nn.Cell):
    """Expands c (n, k) -> c P (n, M), n combinations of the components, with one all-gather. A collective."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.gather = ops.AllGather() if columns.ranks > 1 else None

    def construct(self, within: Tensor) -> Tensor:
        parts = ops.matmul(within, self.columns.values)
        if self.gather is None:
            return parts
        ranks, rows, columns = self.columns.ranks, within.shape[0], self.columns.width
        whole = self.gather(parts).reshape(ranks, rows, columns).transpose(1, 0, 2).reshape(rows, ranks * columns)
        return whole[:, : self.columns.numbers]
