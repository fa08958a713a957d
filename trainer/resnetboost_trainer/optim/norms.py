"""Sums of squares that are the same bits every time, for what goes into the weights.

MindSpore's CPU operator deals a long vector's sum out over as many threads as were fastest of late, so that the same
sum of 270 thousand numbers comes out with other last bits in another run. Rows are summed by one thread each.
"""

from mindspore import Tensor, ops

ROW = 4096


def squared_norm(flat: Tensor) -> Tensor:
    """Shape (n,) -> (): the sum of squares. To be used within a graph."""
    squares = ops.square(flat)
    whole = squares.shape[0] // ROW * ROW
    if whole == 0:
        return squares.sum()
    total = squares[:whole].reshape(-1, ROW).sum(1).sum()
    return total + squares[whole:].sum() if whole < squares.shape[0] else total
