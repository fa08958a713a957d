"""Cost model of THOR for a list of layer shapes: FLOP, bytes and load balance, counted rather than measured.

Counts for every layer with an input axis and an output axis, each split into blocks of sizes b:
    inversion       b^3 per block: Cholesky b^3 / 3, the inverse from the factor 2 b^3 / 3; once per update
    covariances     2 N T b^2 for N samples of T positions, the full symmetric product; once per update
    preconditioning 2 b^2 per block and entry of the other axis; every step
    factors         4 b^2 bytes; as many again for the inverses
A multiplication and an addition are two FLOP. Padding counts, since it is computed. Whole factors of ResNet-50 with
1001 classes at N = 32 cost 452.8, 1605 and 156.2 GFLOP and 586.9 MiB; MindSpore's blocks of 128 and an unpadded
remainder 1.339, 253.3 and 13.0 GFLOP and 40.0 MiB (remainders padded to 128: 1.347, 273.6, 13.0 and 40.3); forward and
backward 785 GFLOP.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from resnetboost_trainer.models import arch
from resnetboost_trainer.optim.thor import assignment, blocks

Cut = Callable[[int, int], list[int]]  # channels, unit -> sizes of the blocks

GIGA, MEBI = 1e9, 2**20


class Shape(msgspec.Struct, frozen=True):
    """A convolution or dense layer: `groups` matrices of `outputs` rows and `channels` * `unit` columns.

    `unit` is the kernel's pixels, `positions` the pixels of its output; both are 1 for a dense layer.
    """

    name: str
    outputs: int
    channels: int
    unit: int = 1
    positions: int = 1
    groups: int = 1

    @property
    def columns(self) -> int:
        """Columns of each matrix."""
        return self.channels * self.unit


class Cost(msgspec.Struct, frozen=True):
    """Total over all layers: FLOP of an update (inversion, covariances) and of every step, bytes of the factors."""

    inversion: int
    covariances: int
    preconditioning: int
    factor_bytes: int


def whole(channels: int, unit: int) -> list[int]:
    """Split an axis into one block, the whole factor."""
    return [channels * unit]


def vendors(channels: int, unit: int) -> list[int]:
    """Split an axis like MindSpore: blocks of 128 and a remainder."""
    full, remainder = divmod(channels * unit, 128)
    return [128] * full + [remainder] * (remainder > 0)


def equal(block_size: int) -> Cut:
    """Return this trainer's split into equal blocks of at most `block_size`."""

    def cut(channels: int, unit: int) -> list[int]:
        axis = blocks.cut(channels, unit, block_size)
        return [axis.size] * axis.count

    return cut


def cost(shapes: Sequence[Shape], cut: Cut, samples: int) -> Cost:
    """Return the cost for a way to split factors, with `samples` samples per rank, without distribution."""
    inversion = covariances = preconditioning = squares = 0
    for shape in shapes:
        inputs, outputs = _axes(shape, cut)
        inversion += shape.groups * _powers(inputs + outputs, 3)
        own = shape.groups * _powers(inputs + outputs, 2)
        covariances += 2 * samples * shape.positions * own
        squares += own
        by_outputs, by_inputs = _powers(outputs, 2) * shape.columns, _powers(inputs, 2) * shape.outputs
        preconditioning += 2 * shape.groups * (by_outputs + by_inputs)
    return Cost(inversion, covariances, preconditioning, 4 * squares)


def training(shapes: Sequence[Shape], samples: int) -> int:
    """Return the FLOP of forward and backward pass; the backward pass takes twice as many as the forward."""
    return 6 * samples * sum(shape.groups * shape.outputs * shape.columns * shape.positions for shape in shapes)


def speedup(shapes: Sequence[Shape], cut: Cut, ranks: int, by_factor: bool = False) -> float:
    """Return the speedup of inversion on `ranks` ranks over one, distributed by block or by factor.

    On 32 ranks, 128-blocks of ResNet-50 reach 17.7 by factor and 31.9 by block.
    """
    costs = [float(item) for shape in shapes for item in _inversions(shape, cut, by_factor)]
    loads = [0.0] * ranks
    for own, owner in zip(costs, assignment.assign(costs, ranks), strict=True):
        loads[owner] += own
    return sum(costs) / max(loads)


def resnet50(classes: int) -> list[Shape]:
    """Return the 54 layers with weight matrices, for images of 224 x 224."""
    network = arch.topology("resnet50", 3)
    shapes = [_shape(convolution, 112) for convolution in network.stem]
    size = 56  # after the stem's stride and the pooling's
    for block in network.blocks:
        before = size
        for convolution in block.convolutions:
            size //= convolution.stride
            shapes.append(_shape(convolution, size))
        if block.downsample is not None:
            shapes.append(_shape(block.downsample, before // block.stride))
    return [*shapes, Shape(arch.HEAD, classes, network.features)]


def _shape(convolution: arch.Convolution, size: int) -> Shape:
    """Return the matrix of a convolution whose output is `size` pixels wide."""
    pixels = convolution.kernel**2
    outputs, channels = convolution.outputs // convolution.groups, convolution.inputs // convolution.groups
    return Shape(convolution.name, outputs, channels, pixels, size**2, convolution.groups)


def table(shapes: Sequence[Shape], samples: int, block_size: int) -> str:
    """Format the costs of whole factors, MindSpore's blocks and ours as a table."""
    cuts = {"whole factors": whole, "MindSpore, 128": vendors, f"ours, {block_size}": equal(block_size)}
    lines = ["GFLOP              inversion  covariances  preconditioning  factors, MiB  faster on 8, 32 ranks"]
    for name, cut in cuts.items():
        one = cost(shapes, cut, samples)
        lines.append(
            f"{name:<16}{one.inversion / GIGA:>12.3f}{one.covariances / GIGA:>13.1f}"
            f"{one.preconditioning / GIGA:>17.1f}{one.factor_bytes / MEBI:>14.1f}"
            f"{speedup(shapes, cut, 8):>17.1f}{speedup(shapes, cut, 32):>6.1f}"
        )
    return "\n".join(
        [*lines, f"forward and backward of {samples} samples: {training(shapes, samples) / GIGA:.1f} GFLOP"]
    )


def _axes(shape: Shape, cut: Cut) -> tuple[list[int], list[int]]:
    return cut(shape.channels, shape.unit), cut(shape.outputs, 1)


def _inversions(shape: Shape, cut: Cut, by_factor: bool) -> Iterator[int]:
    """Yield the FLOP of inverting every block of a layer, or every factor."""
    for _ in range(shape.groups):
        for axis in _axes(shape, cut):
            yield from [_powers(axis, 3)] if by_factor else [_powers([size], 3) for size in axis]


def _powers(sizes: Sequence[int], exponent: int) -> int:
    return sum(int(size**exponent) for size in sizes)
