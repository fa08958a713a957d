"""Table of ResNet architectures: blocks, widths, strides, parameter names and shapes; imports no framework.

The trained network, the ONNX graph and THOR's cost model are all built from `large` and `small`.
resnet18/34/50/101/152 are torchvision's and seresnet50 is timm's, name by name; resnet20/32/44/56 are those of He et
al. (2015), §4.2. The part of a parameter is what `model.freeze` calls it: the stem, a group of blocks, or the head.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

Shapes = dict[str, tuple[int, ...]]


class Large(NamedTuple):
    """Number of blocks in each of four groups; whether they are bottlenecks and have squeeze and excitation."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    squeezes: bool = False


LARGE = {
    "resnet18": Large((2, 2, 2, 2), False),
    "resnet34": Large((3, 4, 6, 3), False),
    "resnet50": Large((3, 4, 6, 3), True),
    "resnet101": Large((3, 4, 23, 3), True),
    "resnet152": Large((3, 8, 36, 3), True),
    "seresnet50": Large((3, 4, 6, 3), True, squeezes=True),
}
# Blocks in each of the three groups: n for 6n + 2 layers.
SMALL = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}

STATISTICS = ("moving_mean", "moving_variance")
HEAD = "fc"


def squeezed(channels: int) -> int:
    """Return the inner width of squeeze and excitation: channels / 16 (Hu et al. 2018, §6.1), at least timm's 8."""
    return max(8, channels // 16)


class Convolution(NamedTuple):
    """A square convolution, padded by half its kernel; `norm` is the batch normalisation after it."""

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1

    @property
    def padding(self) -> int:
        """Pixels of zeros on each side."""
        return self.kernel // 2


class Block(NamedTuple):
    """A residual block; its shortcut is the identity, a 1x1 convolution, or subsampling and padding (option A)."""

    path: str
    inputs: int
    width: int
    stride: int
    bottleneck: bool
    squeezes: bool
    shortcut: Literal["identity", "convolution", "subsampled"]

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 4 * self.width if self.bottleneck else self.width

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The residual branch's convolutions in order; a bottleneck's stride is on its 3x3."""
        width = self.width
        sizes = [(self.inputs, width, 3, self.stride), (width, width, 3, 1)]
        if self.bottleneck:
            sizes = [(self.inputs, width, 1, 1), (width, width, 3, self.stride), (width, self.outputs, 1, 1)]
        return tuple(
            Convolution(f"{self.path}.conv{place}", f"{self.path}.bn{place}", *size)
            for place, size in enumerate(sizes, start=1)
        )

    @property
    def downsample(self) -> Convolution | None:
        """The shortcut's convolution, if it has one."""
        if self.shortcut != "convolution":
            return None
        path = f"{self.path}.downsample"
        return Convolution(f"{path}.0", f"{path}.1", self.inputs, self.outputs, 1, self.stride)


class Topology(NamedTuple):
    """A network: the stem's convolution, a 3x3 max pooling at stride 2 if `pooled`, groups of blocks, mean, head."""

    stem: Convolution
    pooled: bool
    groups: tuple[tuple[Block, ...], ...]

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all groups in their order."""
        return (block for group in self.groups for block in group)

    @property
    def convolutions(self) -> Iterator[Convolution]:
        """All convolutions: the stem's, then for each block those of its branch and that of its shortcut."""
        yield self.stem
        for block in self.blocks:
            yield from block.convolutions
            if block.downsample is not None:
                yield block.downsample

    @property
    def features(self) -> int:
        """Number of input features of the head."""
        return self.groups[-1][-1].outputs


def topology(name: str, channels: int) -> Topology:
    """Return the network of that name for images with `channels` channels."""
    return large(LARGE[name], channels) if name in LARGE else small(SMALL[name], channels)


def large(form: Large, channels: int) -> Topology:
    """Return torchvision's network of that form: a 7x7 stem at stride 2 and groups of 64, 128, 256, 512 channels."""
    groups, inputs = [], 64
    for group, count in enumerate(form.blocks):
        blocks = []
        for place in range(count):
            stride = 2 if group and not place else 1
            block = Block(
                f"layer{group + 1}.{place}", inputs, 64 << group, stride, form.bottleneck, form.squeezes, "identity"
            )
            if stride != 1 or inputs != block.outputs:
                block = block._replace(shortcut="convolution")
            blocks.append(block)
            inputs = block.outputs
        groups.append(tuple(blocks))
    return Topology(Convolution("conv1", "bn1", channels, 64, 7, 2), True, tuple(groups))


def small(count: int, channels: int) -> Topology:
    """Return He et al.'s network for small images: a 3x3 stem, groups of 16, 32, 64 channels, `count` blocks each."""
    groups, inputs = [], 16
    for group in range(3):
        blocks = []
        for place in range(count):
            stride = 2 if group and not place else 1
            shortcut: Literal["identity", "subsampled"] = "identity" if stride == 1 else "subsampled"
            blocks.append(Block(f"layer{group + 1}.{place}", inputs, 16 << group, stride, False, False, shortcut))
            inputs = 16 << group
        groups.append(tuple(blocks))
    return Topology(Convolution("conv1", "bn1", channels, 16, 3), False, tuple(groups))


def parameters(name: str, classes: int, channels: int) -> Shapes:
    """Return the shapes of all parameters and BN statistics of a network, by name."""
    return dict(_parameters(topology(name, channels), classes))


def part(parameter: str) -> str:
    """Return the part of a parameter: stem, layer1 to layer4, or head."""
    first = parameter.partition(".")[0]
    return {"conv1": "stem", "bn1": "stem", HEAD: "head"}.get(first, first)


def parts(name: str) -> tuple[str, ...]:
    """Return the parts of that network that can be frozen."""
    return ("stem", *(f"layer{group + 1}" for group in range(len(topology(name, 3).groups))), "head")


def _parameters(network: Topology, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _normalised(network.stem)
    for block in network.blocks:
        for convolution in block.convolutions:
            yield from _normalised(convolution)
        if block.squeezes:
            yield from _squeeze(block.path, block.outputs)
        if block.downsample is not None:
            yield from _normalised(block.downsample)
    yield f"{HEAD}.weight", (classes, network.features)
    yield f"{HEAD}.bias", (classes,)


def _squeeze(path: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    inner = squeezed(channels)
    for layer, inputs, outputs in (("fc1", channels, inner), ("fc2", inner, channels)):
        yield f"{path}.se.{layer}.weight", (outputs, inputs, 1, 1)
        yield f"{path}.se.{layer}.bias", (outputs,)


def _normalised(convolution: Convolution) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{convolution.name}.weight", (convolution.outputs, convolution.inputs, *[convolution.kernel] * 2)
    for last in ("gamma", "beta", *STATISTICS):
        yield f"{convolution.norm}.{last}", (convolution.outputs,)
