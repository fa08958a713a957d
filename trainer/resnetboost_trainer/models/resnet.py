"""ResNets of torchvision, timm and He et al. (2015) as MindSpore cells; independent of data, loss and ranks.

resnet18/34/50/101/152, resnext* and wide_resnet* are torchvision's, layer by layer and name by name ("v1.5": a
bottleneck's stride is on its 3x3); BN's parameters keep MindSpore's names gamma, beta, moving_mean, moving_variance.
seresnet50 is resnet50 with squeeze and excitation (Hu et al. 2018) in timm's form: 1x1 convolutions with biases.
resnet18d/34d/50d/101d/152d are timm's ResNet-D (He et al. 2019, "Bag of Tricks", §4.2).
resnet20/32/44/56 are those of "Deep Residual Learning for Image Recognition" §4.2 with option A shortcuts.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import mindspore
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch, freeze, trunk
from resnetboost_trainer.models.amp import TYPES, operable, single
from resnetboost_trainer.models.arch import LARGE, SMALL, Block, Convolution, Large
from resnetboost_trainer.models.init import TORCHVISION, initialise
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.layers.norm import BatchNorm


def build(
    name: str,
    num_classes: int,
    in_channels: int,
    seed: int = 0,
    init: config.Init = TORCHVISION,
    precision: config.Precision = "Float32",
) -> nn.Cell:
    """Build a network (n, in_channels, h, w) -> (n, num_classes), float32 to float32, with `precision` in between.

    Its initial weights do not depend on `precision`. Raises ConfigError for an unknown name.
    """
    if name not in LARGE | SMALL:
        raise ConfigError(f"model.name: {name} is not one of {', '.join((*LARGE, *SMALL))}")
    if name in LARGE:
        network: nn.Cell = ResNet(LARGE[name], num_classes, in_channels, precision)
    else:
        network = SmallResNet(SMALL[name], num_classes, in_channels, precision)
    initialise(network, seed, init)
    return network


def configured(settings: config.Model, in_channels: int, seed: int, precision: config.Precision) -> nn.Cell:
    """Build a job's network with its initial weights, and freeze the parts in `model.freeze`."""
    network = build(settings.name, settings.num_classes, in_channels, seed, settings.init, precision)
    freeze.freeze(network, settings.freeze)
    return network


def identity(settings: config.Model, in_channels: int) -> str:
    """Return a string that identifies the network in checkpoints: name, classes, channels and frozen parts."""
    frozen = sorted(set(settings.freeze))
    return "/".join([settings.name, str(settings.num_classes), str(in_channels), *(f"-{part}" for part in frozen)])


def synchronize(network: nn.Cell, ranks: int) -> None:
    """Make the network normalize by the statistics over all ranks in training; call it before compiling."""
    for _, cell in network.cells_and_names():
        if isinstance(cell, BatchNorm):
            cell.synchronize(ranks)
    network.train_by_layer()


def convolution_forms(network: nn.Cell) -> str:
    """Return the forms of the network's convolutions for logs and metrics: `onednn`, `native`, `gemm` or several."""
    return "+".join(sorted({cell.form for _, cell in network.cells_and_names() if isinstance(cell, Conv2d)}))


class ResidualBlock(nn.Cell):
    """What blocks have in common: the addition of the shortcut, with stochastic depth and synchronized normalization.

    A subclass has its branch up to the last convolution, `last`, the normalization after that, and `downsample`.
    """

    last: BatchNorm
    downsample: nn.Cell | None
    se: nn.Cell | None

    def __init__(self) -> None:
        super().__init__()
        self.drops, self.place = False, 0
        object.__setattr__(self, "factors", ())

    def drop(self, factors: Parameter, place: int) -> None:
        """Multiply the branch by row `place` of the factors (blocks, n) in training."""
        self.drops, self.place = True, place
        # MindSpore would register the parameter once more, under other names.
        object.__setattr__(self, "factors", (factors,))

    def joined(self, y: Tensor, x: Tensor) -> Tensor:
        """Return relu(branch + shortcut) from what the branch's last convolution returns and the block's input."""
        if self.training and self.last.synchronized:
            y, token = self.last.across(y, self.last.begin)
            shortcut = x if self.downsample is None else self.downsample.after(x, token)
            return ops.relu(self.kept(y if self.se is None else self.se(y)) + shortcut)
        shortcut = x if self.downsample is None else self.downsample(x)
        if self.se is None and not (self.training and self.drops):
            return self.last.added(y, shortcut)
        y = self.last(y)
        return ops.relu(self.kept(y if self.se is None else self.se(y)) + shortcut)

    def kept(self, y: Tensor) -> Tensor:
        """Return the branch with its images' factors."""
        if self.training and self.drops:
            return y * self.factors[0][self.place].reshape(-1, 1, 1, 1).astype(y.dtype)
        return y


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions and a shortcut: (n, c, h, w) -> (n, width, h / stride, w / stride)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        first, second = block.convolutions
        self.conv1 = _convolution(first)
        self.bn1 = BatchNorm(first.outputs)
        self.conv2 = _convolution(second)
        self.bn2 = BatchNorm(second.outputs)
        self.se = None
        self.downsample = _shortcut(block)
        object.__setattr__(self, "last", self.bn2)  # MindSpore would register it once more, under another name

    def construct(self, x: Tensor) -> Tensor:
        return self.joined(self.conv2(self.bn1.rectified(self.conv1(x))), x)


class Bottleneck(ResidualBlock):
    """1x1, 3x3, 1x1 convolutions and a shortcut: (n, c, h, w) -> (n, 4 width, h / stride, w / stride).

    Squeeze and excitation, if any, comes before the addition of the shortcut.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        first, second, third = block.convolutions
        self.conv1 = _convolution(first)
        self.bn1 = BatchNorm(first.outputs)
        self.conv2 = _convolution(second)
        self.bn2 = BatchNorm(second.outputs)
        self.conv3 = _convolution(third)
        self.bn3 = BatchNorm(third.outputs)
        self.se = SqueezeExcitation(block.outputs) if block.squeezes else None
        self.downsample = _shortcut(block)
        object.__setattr__(self, "last", self.bn3)  # MindSpore would register it once more, under another name

    def construct(self, x: Tensor) -> Tensor:
        y = self.bn1.rectified(self.conv1(x))
        y = self.bn2.rectified(self.conv2(y))
        return self.joined(self.conv3(y), x)


class SqueezeExcitation(nn.Cell):
    """Scales each channel by a weight from 0 to 1 computed from all channels' means: (n, c, h, w) -> (n, c, h, w).

    The weights are sigmoid(W2 relu(W1 z + b1) + b2), with z the means (Hu et al. 2018, eq. 3).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = arch.squeezed(channels)
        self.fc1, self.fc2 = BiasedPointwise(channels, inner), BiasedPointwise(inner, channels)

    def construct(self, x: Tensor) -> Tensor:
        n, c, _, _ = x.shape
        means = global_mean(single(x)).astype(x.dtype).reshape(n, c, 1, 1)
        return x * ops.sigmoid(self.fc2(ops.relu(self.fc1(means))))


class BiasedPointwise(Conv2d):
    """1x1 convolution with bias: (n, c, h, w) -> (n, out_channels, h, w)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 1)
        self.bias = Parameter(initializer("zeros", (out_channels,), mindspore.float32), name="bias")

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.convolution(x, weight) + self.bias.astype(x.dtype).reshape(1, -1, 1, 1)


class _Network(nn.Cell):
    """A network whose trunk, all layers up to the head, may run as one operator instead of layer by layer."""

    trains_by_layer = False

    def __init__(self, precision: config.Precision) -> None:
        super().__init__()
        self.precision, self.type = precision, TYPES[precision]

    def fuse(self, network: arch.Topology) -> None:
        """Use the operator if it runs this network; call it when all layers are there."""
        self.trunk: Any = trunk.of(network) if self.precision == "Float32" else None
        self.fuses_layers = self.trunk is not None
        named = dict(self.parameters_and_names())
        # MindSpore would register the parameters once more, under other names.
        object.__setattr__(self, "tensors", tuple(named[name] for name in trunk.names(network)))

    def train_by_layer(self) -> None:
        """Run layer by layer in training, for what the operator does not do."""
        self.trains_by_layer = True

    def features(self, x: Tensor) -> Tensor:
        """Return the features (n, channels) of the images (n, c, h, w), by the operator."""
        features: Tensor = self.trunk(x, self.tensors, self.training)
        return features


class ResNet(_Network):
    """torchvision's ResNet: 7x7 stem at stride 2, max pooling, four groups of blocks."""

    def __init__(self, form: Large, num_classes: int, in_channels: int, precision: config.Precision) -> None:
        super().__init__(precision)
        network = arch.large(form, in_channels)
        self.conv1 = _stem(network.stem)
        self.bn1 = BatchNorm(network.stem[-1].outputs)
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.layer1, self.layer2, self.layer3, self.layer4 = (_group(blocks) for blocks in network.groups)
        self.fc = nn.Dense(network.features, num_classes)
        self.fuse(network)

    def construct(self, x: Tensor) -> Tensor:
        if self.fuses_layers and not (self.training and self.trains_by_layer):
            return self.fc(self.features(x))
        y = self.bn1.rectified(self.conv1(x.astype(self.type)))
        y = self.maxpool(operable(y)).astype(self.type)
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        return self.fc(global_mean(single(y)))


class SmallResNet(_Network):
    """He et al.'s ResNet for small images: 3x3 stem, three groups of blocks."""

    def __init__(self, blocks: int, num_classes: int, in_channels: int, precision: config.Precision) -> None:
        super().__init__(precision)
        network = arch.small(blocks, in_channels)
        self.conv1 = _stem(network.stem)
        self.bn1 = BatchNorm(network.stem[-1].outputs)
        self.layer1, self.layer2, self.layer3 = (_group(blocks) for blocks in network.groups)
        self.fc = nn.Dense(network.features, num_classes)
        self.fuse(network)

    def construct(self, x: Tensor) -> Tensor:
        if self.fuses_layers and not (self.training and self.trains_by_layer):
            return self.fc(self.features(x))
        y = self.bn1.rectified(self.conv1(x.astype(self.type)))
        y = self.layer3(self.layer2(self.layer1(y)))
        return self.fc(global_mean(single(y)))


def _group(blocks: Sequence[Block]) -> nn.Cell:
    return nn.SequentialCell([Bottleneck(block) if block.bottleneck else BasicBlock(block) for block in blocks])


def _convolution(row: Convolution, stem: bool = False) -> Conv2d:
    return Conv2d(row.inputs, row.outputs, row.kernel, row.stride, row.padding, stem=stem, group=row.groups)


def _stem(rows: Sequence[Convolution]) -> nn.Cell:
    """Build the stem up to its last convolution, whose normalization is the network's own; timm's places as names."""
    first = _convolution(rows[0], stem=True)
    if len(rows) == 1:
        return first
    cells: list[nn.Cell] = [first]
    for before, row in itertools.pairwise(rows):
        cells += [BatchNorm(before.outputs, rectifies=True), nn.Identity(), _convolution(row)]
    return nn.SequentialCell(cells)


def _shortcut(block: Block) -> nn.Cell | None:
    """Build the shortcut that changes the input's shape to the output's; None for the identity."""
    if block.shortcut == "subsampled":
        return SubsampleAndPad(block.outputs - block.inputs)
    row = block.downsample
    if row is None:
        return None
    before = [Averaged() if block.averages else nn.Identity()] if block.shortcut == "averaged" else []
    return Downsample([*before, _convolution(row), BatchNorm(row.outputs)])


class Downsample(nn.SequentialCell):
    """A shortcut's convolution and normalization, [after a pooling]."""

    def after(self, x: Tensor, token: Tensor) -> Tensor:
        """Return the same with statistics over all ranks, gathered after those that gave the token."""
        for cell in self.cell_list[:-1]:
            x = cell(x)
        y, _ = self.cell_list[-1].across(x, token)
        return y


class Averaged(nn.Cell):
    """Mean of 2x2 pixels at stride 2: (n, c, h, w) -> (n, c, ceil(h / 2), ceil(w / 2)).

    At an odd border it is the mean of the pixels inside: as if the last row or column stood there twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = ops.AvgPool(kernel_size=2, strides=2, pad_mode="valid")

    def construct(self, x: Tensor) -> Tensor:
        y = operable(x)
        if y.shape[2] % 2:
            y = ops.concat((y, y[:, :, -1:]), 2)
        if y.shape[3] % 2:
            y = ops.concat((y, y[:, :, :, -1:]), 3)
        return self.pool(y).astype(x.dtype)


class SubsampleAndPad(nn.Cell):
    """Option A of He et al. §3.3: every second row and column, then zeros as additional channels."""

    def __init__(self, additional_channels: int) -> None:
        super().__init__()
        self.additional_channels = additional_channels
        # On a CPU a 1x1 pool is 4 times faster than strided slices and gives the same bits.
        self.subsample = ops.AvgPool(kernel_size=1, strides=2, pad_mode="valid")

    def construct(self, x: Tensor) -> Tensor:
        y = self.subsample(operable(x)).astype(x.dtype)
        shape = (y.shape[0], self.additional_channels, y.shape[2], y.shape[3])
        return ops.concat((y, ops.zeros(shape, y.dtype)), 1)

    def after(self, x: Tensor, token: Tensor) -> Tensor:
        """Return the shortcut; it communicates nothing, so no order matters."""
        return self.construct(x)


def global_mean(x: Tensor) -> Tensor:
    """Return the mean over the pixels, (n, c, h, w) -> (n, c), by a product: a reduction is 5 times slower on a CPU."""
    n, c, h, w = x.shape
    return ops.matmul(x.reshape(n * c, h * w), ops.full((h * w, 1), 1.0 / (h * w), dtype=x.dtype)).reshape(n, c)
