"""Sums gradients over the ranks in buckets during the backward pass: their plan and their graph.

As in PyTorch's DistributedDataParallel (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", §3.2.3): a collective per tensor costs too many starts, a single one has to wait for the last gradient.
"""

from collections.abc import Sequence

from mindspore import Parameter, Tensor, nn, ops

BYTES = 4  # of a float32


def plan(sizes: Sequence[int], bucket_bytes: int) -> tuple[tuple[int, int], ...]:
    """Cut tensors of so many float32 numbers into buckets: (first, end) of each, the bucket of the last tensors first.

    The backward pass makes the gradients of the last layers first. A tensor of more bytes is a bucket by itself.
    """
    buckets, end, held = [], len(sizes), 0
    for place in reversed(range(len(sizes))):
        size = BYTES * sizes[place]
        if held and held + size > bucket_bytes:
            buckets.append((place + 1, end))
            end, held = place + 1, 0
        held += size
    return (*buckets, (0, end))


class Buckets(nn.Cell):
    """Sum over the ranks, a collective for each bucket, all in one order: gradients and scalars -> the flat buffer."""

    def __init__(self, sizes: Sequence[int], bucket_bytes: int, loss_scale: float | Parameter = 1.0) -> None:
        """The gradients are of a loss times `loss_scale`, and are divided by it before they are summed."""
        super().__init__()
        self.plan = plan(sizes, bucket_bytes)
        self.scaled = isinstance(loss_scale, Parameter) or loss_scale != 1
        self.loss_scale = loss_scale
        self.reduce = ops.AllReduce()

    def construct(self, gradients: list[Tensor], scalars: Tensor) -> Tensor:
        """Shapes: gradients by parameter (size,), scalars (s,), which go with the last layers -> (parameters + s,)."""
        summed: list[Tensor] = []
        for first, end in self.plan:
            bucket = ops.concat(gradients[first:end])
            bucket = bucket / self.loss_scale if self.scaled else bucket
            # One after another: ranks that are in different collectives would wait for each other for ever.
            bucket = ops.depend(bucket, summed[-1]) if summed else ops.concat([bucket, scalars])
            summed.append(self.reduce(bucket))
        return ops.concat(summed[::-1])
