"""The family of networks as plain numbers: who has which parameters of which shape; it needs no framework.

resnet18/34/50/101/152 are torchvision's and seresnet50 is timm's, name by name; resnet20/32/44/56 are those of He et
al. (2015), §4.2. A parameter's part is what `model.freeze` calls it: the stem, a group of blocks, or the head.
"""

from collections.abc import Iterator
from typing import NamedTuple

Shapes = dict[str, tuple[int, ...]]


class Large(NamedTuple):
    """Blocks in each of four groups, whether they are bottlenecks, and whether they weigh their channels."""

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
    """Width of the bottleneck that weighs so many channels: a sixteenth (Hu et al. 2018, §6.1), at least timm's 8."""
    return max(8, channels // 16)


def parameters(name: str, classes: int, channels: int) -> Shapes:
    """Shapes of all parameters and BN statistics of that network, for images of so many channels."""
    return dict(_large(LARGE[name], classes, channels) if name in LARGE else _small(SMALL[name], classes, channels))


def part(parameter: str) -> str:
    """stem, layer1 to layer4, or head."""
    first = parameter.partition(".")[0]
    return {"conv1": "stem", "bn1": "stem", HEAD: "head"}.get(first, first)


def parts(name: str) -> tuple[str, ...]:
    """What of that network can be frozen by itself."""
    return ("stem", *(f"layer{group + 1}" for group in range(4 if name in LARGE else 3)), "head")


def _large(form: Large, classes: int, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _normalised("conv1", "bn1", (64, channels, 7, 7))
    inputs = 64
    for group, count in enumerate(form.blocks):
        width = 64 << group
        outputs = 4 * width if form.bottleneck else width
        for block in range(count):
            path = f"layer{group + 1}.{block}"
            yield from _bottleneck(path, inputs, width) if form.bottleneck else _basic(path, inputs, width)
            if form.squeezes:
                yield from _squeeze(path, outputs)
            if inputs != outputs:
                yield from _normalised(f"{path}.downsample.0", f"{path}.downsample.1", (outputs, inputs, 1, 1))
            inputs = outputs
    yield from _head(inputs, classes)


def _small(count: int, classes: int, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _normalised("conv1", "bn1", (16, channels, 3, 3))
    inputs = 16
    for group in range(3):
        for block in range(count):
            yield from _basic(f"layer{group + 1}.{block}", inputs, 16 << group)
            inputs = 16 << group
    yield from _head(inputs, classes)


def _basic(path: str, inputs: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _normalised(f"{path}.conv1", f"{path}.bn1", (width, inputs, 3, 3))
    yield from _normalised(f"{path}.conv2", f"{path}.bn2", (width, width, 3, 3))


def _bottleneck(path: str, inputs: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _normalised(f"{path}.conv1", f"{path}.bn1", (width, inputs, 1, 1))
    yield from _normalised(f"{path}.conv2", f"{path}.bn2", (width, width, 3, 3))
    yield from _normalised(f"{path}.conv3", f"{path}.bn3", (4 * width, width, 1, 1))


def _squeeze(path: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    inner = squeezed(channels)
    for layer, inputs, outputs in (("fc1", channels, inner), ("fc2", inner, channels)):
        yield f"{path}.se.{layer}.weight", (outputs, inputs, 1, 1)
        yield f"{path}.se.{layer}.bias", (outputs,)


def _normalised(convolution: str, norm: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{convolution}.weight", shape
    for last in ("gamma", "beta", *STATISTICS):
        yield f"{norm}.{last}", shape[:1]


def _head(inputs: int, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{HEAD}.weight", (classes, inputs)
    yield f"{HEAD}.bias", (classes,)
