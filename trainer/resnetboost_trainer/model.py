"""The residual networks of torchvision and of He et al. (2015); it must not know of data, loss or ranks.

resnet18/34/50/101/152 are torchvision's, layer by layer and name by name ("v1.5": a bottleneck's stride is on
its 3x3); BN's parameters keep MindSpore's names gamma, beta, moving_mean, moving_variance.
resnet20/32/44/56 are those of "Deep Residual Learning for Image Recognition" §4.2 with option A shortcuts.
"""

import math
import zlib
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.conv import Conv2d
from resnetboost_trainer.verdict import ConfigError

# Blocks in each of the four groups, and whether they are bottlenecks.
LARGE = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
# Blocks in each of the three groups: n for 6n + 2 layers.
SMALL = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}


def build(name: str, num_classes: int, in_channels: int, seed: int = 0) -> nn.Cell:
    """A network (n, in_channels, h, w) -> (n, num_classes) with weights that depend on its arguments only."""
    if name not in LARGE | SMALL:
        raise ConfigError(f"model.name: {name} is not one of {', '.join((*LARGE, *SMALL))}")
    if name in LARGE:
        blocks, bottleneck = LARGE[name]
        network: nn.Cell = ResNet(blocks, Bottleneck if bottleneck else BasicBlock, num_classes, in_channels)
    else:
        network = SmallResNet(SMALL[name], num_classes, in_channels)
    initialise(network, seed)
    return network


def convolution_forms(network: nn.Cell) -> str:
    """How the network's convolutions run, for logs and metrics: `native`, `gemm` or both."""
    return "+".join(sorted({cell.form for _, cell in network.cells_and_names() if isinstance(cell, Conv2d)}))


def initialise(network: nn.Cell, seed: int) -> None:
    """Convolutions: normal, variance 2 / fan-out (He et al. 2015); dense: uniform within 1 / sqrt(inputs).

    Each parameter draws from a generator of its own, keyed by its name: the same bits in every process.
    """
    for name, parameter in network.parameters_and_names():
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
        if parameter.ndim == 4:  # (out, in, height, width)
            deviation = math.sqrt(2 / (parameter.shape[0] * parameter.shape[2] * parameter.shape[3]))
            _assign(parameter, generator.standard_normal(parameter.shape, np.float32) * np.float32(deviation))
        elif name.startswith("fc."):
            bound = 1 / math.sqrt(network.fc.in_channels)
            _assign(parameter, generator.uniform(-bound, bound, parameter.shape))


def _assign(parameter: Parameter, values: NDArray[np.floating[Any]]) -> None:
    parameter.set_data(Tensor(values.astype(np.float32)))


def batch_norm(channels: int) -> nn.Cell:
    """BN with torchvision's constants: its momentum of 0.1 is 0.9 in MindSpore's convention."""
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)


class BasicBlock(nn.Cell):
    """Two 3x3 convolutions and a shortcut: (n, c, h, w) -> (n, channels, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, downsample: nn.Cell | None) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride, 1)
        self.bn1 = batch_norm(channels)
        self.conv2 = Conv2d(channels, channels, 3, 1, 1)
        self.bn2 = batch_norm(channels)
        self.downsample = downsample

    def construct(self, x: Tensor) -> Tensor:
        y = ops.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return ops.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Cell):
    """1x1, 3x3, 1x1 convolutions and a shortcut: (n, c, h, w) -> (n, 4 channels, h / stride, w / stride)."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, downsample: nn.Cell | None) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 1)
        self.bn1 = batch_norm(channels)
        self.conv2 = Conv2d(channels, channels, 3, stride, 1)
        self.bn2 = batch_norm(channels)
        self.conv3 = Conv2d(channels, 4 * channels, 1)
        self.bn3 = batch_norm(4 * channels)
        self.downsample = downsample

    def construct(self, x: Tensor) -> Tensor:
        y = ops.relu(self.bn1(self.conv1(x)))
        y = ops.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return ops.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Cell):
    """torchvision's ResNet: 7x7 stem at stride 2, max pooling, four groups of 64, 128, 256, 512 channels."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        block: type[BasicBlock | Bottleneck],
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, 64, 7, 2, 3)
        self.bn1 = batch_norm(64)
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        outputs = [block.expansion * channels for channels in (64, 128, 256, 512)]
        self.layer1 = _group(block, 64, 64, blocks[0], 1)
        self.layer2 = _group(block, outputs[0], 128, blocks[1], 2)
        self.layer3 = _group(block, outputs[1], 256, blocks[2], 2)
        self.layer4 = _group(block, outputs[2], 512, blocks[3], 2)
        self.fc = nn.Dense(outputs[3], num_classes)

    def construct(self, x: Tensor) -> Tensor:
        y = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        return self.fc(global_mean(y))


class SmallResNet(nn.Cell):
    """He et al.'s ResNet for small images: 3x3 stem, three groups of 16, 32, 64 channels."""

    def __init__(self, blocks: int, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, 16, 3, 1, 1)
        self.bn1 = batch_norm(16)
        self.layer1 = _group(BasicBlock, 16, 16, blocks, 1)
        self.layer2 = _group(BasicBlock, 16, 32, blocks, 2, free=True)
        self.layer3 = _group(BasicBlock, 32, 64, blocks, 2, free=True)
        self.fc = nn.Dense(64, num_classes)

    def construct(self, x: Tensor) -> Tensor:
        y = ops.relu(self.bn1(self.conv1(x)))
        y = self.layer3(self.layer2(self.layer1(y)))
        return self.fc(global_mean(y))


def _group(
    block: type[BasicBlock | Bottleneck],
    in_channels: int,
    channels: int,
    count: int,
    stride: int,
    free: bool = False,
) -> nn.Cell:
    """Blocks of one size; the first one's shortcut changes the shape, with parameters or free of them."""
    outputs = block.expansion * channels
    downsample: nn.Cell | None = None
    if free:
        downsample = SubsampleAndPad(outputs - in_channels)
    elif stride != 1 or in_channels != outputs:
        downsample = nn.SequentialCell([Conv2d(in_channels, outputs, 1, stride), batch_norm(outputs)])
    rest = [block(outputs, channels, 1, None) for _ in range(count - 1)]
    return nn.SequentialCell([block(in_channels, channels, stride, downsample), *rest])


class SubsampleAndPad(nn.Cell):
    """Option A of He et al. §3.3: every second row and column, then zeros as additional channels."""

    def __init__(self, additional_channels: int) -> None:
        super().__init__()
        self.additional_channels = additional_channels
        # On a CPU a 1x1 pool takes every second pixel 4 times faster than strided slices, to the same bits.
        self.subsample = ops.AvgPool(kernel_size=1, strides=2, pad_mode="valid")

    def construct(self, x: Tensor) -> Tensor:
        y = self.subsample(x)
        shape = (y.shape[0], self.additional_channels, y.shape[2], y.shape[3])
        return ops.concat((y, ops.zeros(shape, y.dtype)), 1)


def global_mean(x: Tensor) -> Tensor:
    """Mean over the pixels, (n, c, h, w) -> (n, c), as a product: a reduction is 5 times slower on a CPU."""
    n, c, h, w = x.shape
    return ops.matmul(x.reshape(n * c, h * w), ops.full((h * w, 1), 1.0 / (h * w), dtype=x.dtype)).reshape(n, c)
