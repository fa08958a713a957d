"""Table of ResNet architectures: blocks, widths, strides, parameter names and shapes; imports no framework.

The trained network, the ONNX graph and THOR's cost model are all built from `large` and `small`. Name by name,
resnet18/34/50/101/152, resnext* (Xie et al. 2017) and wide_resnet* (Zagoruyko and Komodakis 2016) are torchvision's;
seresnet50 and resnet*d (ResNet-D of He et al. 2019, "Bag of Tricks", §4.2) are timm's. resnet20/32/44/56 are those of
He et al. (2015), §4.2. The part of a parameter is what `model.freeze` calls it: the stem, a group of blocks, or the
head.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

Shapes = dict[str, tuple[int, ...]]


class Large(NamedTuple):
    """Number of blocks in each of four groups; whether they are bottlenecks and have squeeze and excitation.

    The 3x3 convolutions of bottlenecks have `cardinality` groups of `width` channels in the first group of blocks.
    `deep` is ResNet-D: a stem of three 3x3 convolutions, and shortcuts that average 2x2 pixels instead of leaving three
    out.
    """

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    squeezes: bool = False
    cardinality: int = 1
    width: int = 64
    deep: bool = False


LARGE = {
    "resnet18": Large((2, 2, 2, 2), False),
    "resnet34": Large((3, 4, 6, 3), False),
    "resnet50": Large((3, 4, 6, 3), True),
    "resnet101": Large((3, 4, 23, 3), True),
    "resnet152": Large((3, 8, 36, 3), True),
    "seresnet50": Large((3, 4, 6, 3), True, squeezes=True),
    "resnet18d": Large((2, 2, 2, 2), False, deep=True),
    "resnet34d": Large((3, 4, 6, 3), False, deep=True),
    "resnet50d": Large((3, 4, 6, 3), True, deep=True),
    "resnet101d": Large((3, 4, 23, 3), True, deep=True),
    "resnet152d": Large((3, 8, 36, 3), True, deep=True),
    "resnext50_32x4d": Large((3, 4, 6, 3), True, cardinality=32, width=4),
    "resnext101_32x8d": Large((3, 4, 23, 3), True, cardinality=32, width=8),
    "resnext101_64x4d": Large((3, 4, 23, 3), True, cardinality=64, width=4),
    "wide_resnet50_2": Large((3, 4, 6, 3), True, width=128),
    "wide_resnet101_2": Large((3, 4, 23, 3), True, width=128),
}
# Blocks in each of the three groups: n for 6n + 2 layers.
SMALL = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}

STATISTICS = ("moving_mean", "moving_variance")
HEAD = "fc"


def squeezed(channels: int) -> int:
    """Return the inner width of squeeze and excitation: channels / 16 (Hu et al. 2018, §6.1), at least timm's 8."""
    return max(8, channels // 16)


class Convolution(NamedTuple):
    """A square convolution, padded by half its kernel; `norm` is the batch normalisation after it.

    Each of `groups` equal parts of the outputs sees its own part of the inputs.
    """

    name: str
    norm: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the weight."""
        return self.outputs, self.inputs // self.groups, self.kernel, self.kernel

    @property
    def padding(self) -> int:
        """Pixels of zeros on each side."""
        return self.kernel // 2


class Block(NamedTuple):
    """A residual block; `inner` are the channels between its convolutions, the 3x3 ones of bottlenecks have groups.

    Its shortcut is the identity, a 1x1 convolution, the mean of 2x2 pixels at stride 2 and a 1x1 convolution
    (ResNet-D), or subsampling and padding (option A).
    """

    path: str
    inputs: int
    width: int
    stride: int
    bottleneck: bool
    squeezes: bool
    shortcut: Literal["identity", "convolution", "averaged", "subsampled"]
    inner: int
    groups: int = 1

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return 4 * self.width if self.bottleneck else self.width

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """The residual branch's convolutions in order; a bottleneck's stride is on its 3x3."""
        inner, groups = self.inner, self.groups
        sizes: list[tuple[int, ...]] = [(self.inputs, inner, 3, self.stride), (inner, inner, 3)]
        if self.bottleneck:
            sizes = [(self.inputs, inner, 1), (inner, inner, 3, self.stride, groups), (inner, self.outputs, 1)]
        return tuple(
            Convolution(f"{self.path}.conv{place}", f"{self.path}.bn{place}", *size)
            for place, size in enumerate(sizes, start=1)
        )

    @property
    def downsample(self) -> Convolution | None:
        """The shortcut's convolution, if it has one."""
        if self.shortcut not in ("convolution", "averaged"):
            return None
        path, averaged = f"{self.path}.downsample", self.shortcut == "averaged"
        names = f"{path}.{int(averaged)}", f"{path}.{1 + averaged}"  # timm's first layer is the mean, at any stride
        return Convolution(*names, self.inputs, self.outputs, 1, 1 if averaged else self.stride)

    @property
    def averages(self) -> bool:
        """True if the shortcut takes the mean of 2x2 pixels; at stride 1 there is nothing to leave out."""
        return self.shortcut == "averaged" and self.stride != 1


class Topology(NamedTuple):
    """A network: the stem's convolutions, a 3x3 max pooling at stride 2 if `pooled`, groups of blocks, mean, head."""

    stem: tuple[Convolution, ...]
    pooled: bool
    groups: tuple[tuple[Block, ...], ...]

    @property
    def blocks(self) -> Iterator[Block]:
        """The blocks of all groups in their order."""
        return (block for group in self.groups for block in group)

    @property
    def convolutions(self) -> Iterator[Convolution]:
        """All convolutions: the stem's, then for each block those of its branch and that of its shortcut."""
        yield from self.stem
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
            width, stride = 64 << group, 2 if group and not place else 1
            inner = form.cardinality * (form.width << group) if form.bottleneck else width
            path = f"layer{group + 1}.{place}"
            block = Block(
                path, inputs, width, stride, form.bottleneck, form.squeezes, "identity", inner, form.cardinality
            )
            if stride != 1 or inputs != block.outputs:
                block = block._replace(shortcut="averaged" if form.deep else "convolution")
            blocks.append(block)
            inputs = block.outputs
        groups.append(tuple(blocks))
    return Topology(
        _deep_stem(channels) if form.deep else (Convolution("conv1", "bn1", channels, 64, 7, 2),), True, tuple(groups)
    )


def _deep_stem(channels: int) -> tuple[Convolution, ...]:
    return (
        Convolution("conv1.0", "conv1.1", channels, 32, 3, 2),
        Convolution("conv1.3", "conv1.4", 32, 32, 3),
        Convolution("conv1.6", "bn1", 32, 64, 3),
    )


def small(count: int, channels: int) -> Topology:
    """Return He et al.'s network for small images: a 3x3 stem, groups of 16, 32, 64 channels, `count` blocks each."""
    groups, inputs = [], 16
    for group in range(3):
        blocks = []
        for place in range(count):
            stride = 2 if group and not place else 1
            shortcut: Literal["identity", "subsampled"] = "identity" if stride == 1 else "subsampled"
            width = 16 << group
            blocks.append(Block(f"layer{group + 1}.{place}", inputs, width, stride, False, False, shortcut, width))
            inputs = width
        groups.append(tuple(blocks))
    return Topology((Convolution("conv1", "bn1", channels, 16, 3),), False, tuple(groups))


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


def maps(name: str, height: int, width: int) -> dict[str, tuple[int, int]]:
    """Return height and width of what each part's last batch normalisation sees, for images of that size."""
    network, found, size = topology(name, 3), dict[str, tuple[int, int]](), (height, width)
    for convolution in network.stem:
        found["stem"] = size = _strided(size, convolution.stride)
    size = _strided(size, 2 if network.pooled else 1)
    for block in network.blocks:
        found[part(block.path)] = size = _strided(size, block.stride)
    return found


def _strided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-size[0] // stride), -(-size[1] // stride)


def _parameters(network: Topology, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for convolution in network.stem:
        yield from _normalised(convolution)
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
    yield f"{convolution.name}.weight", convolution.shape
    for last in ("gamma", "beta", *STATISTICS):
        yield f"{convolution.norm}.{last}", (convolution.outputs,)
