"""Preprocessing of a network's input images. Checkpoints record it, so that the network can be used elsewhere.

Independent of how training data are read. A preparation from a checkpoint is untrusted; `problem` checks it.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from resnetboost_trainer.data import resize, transforms
from resnetboost_trainer.data.dataset import Channels, Images
from resnetboost_trainer.data.transforms import Evaluated

MAX_SIDE = 4096  # pixels; a preparation with more is damaged
# More names would not fit into a checkpoint's manifest; such classes are shown by number.
NAMES_LIMIT_BYTES = 1 << 18


class Preparation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Turns a picture into (channels, height, width), each channel (pixel * white / 255 - mean) / deviation.

    With `resize` the shorter side is resized to that length and the central square is cropped, as in the evaluation of
    photographs; without, the whole picture is resized. One channel is grey, three are colours. `classes` are the names
    of the first classes, possibly none.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    white: float = 255.0
    resize: int | None = None
    classes: tuple[str, ...] = ()

    @property
    def channels(self) -> Channels:
        """Mean and deviation as arrays."""
        return Channels(np.array(self.mean, np.float32), np.array(self.deviation, np.float32))

    def problem(self, channels: int, classes: int) -> str:
        """Return why this preparation does not fit a network with these channels and classes, or ""."""
        sides = (self.height, self.width) if self.resize is None else (self.height, self.width, self.resize)
        numbers = (*self.mean, *self.deviation, self.white)
        if not all(1 <= side <= MAX_SIDE for side in sides):
            return f"images of {self.width} x {self.height} pixels"
        if self.resize is not None and not (self.height == self.width <= self.resize and channels == 3):
            return f"a square of {self.width} x {self.height} cut out of {self.resize}, {channels} channels"
        if len(self.mean) != channels or len(self.deviation) != channels:
            return f"{len(self.mean)} means and {len(self.deviation)} deviations for {channels} channels"
        if not all(math.isfinite(number) for number in numbers) or min(*self.deviation, self.white) <= 0:
            return "deviations that are not finite and above 0"
        return f"{len(self.classes)} names for {classes} classes" if len(self.classes) > classes else ""

    def picture(self, data: bytes) -> Images:
        """Decode and prepare a picture file: (channels, height, width). Raises Unreadable."""
        out = np.empty((len(self.mean), self.height, self.width), np.float32)
        if self.resize is not None:
            transforms.fill(out, data, Evaluated(self.width, self.resize), None, self.channels)
            return out
        pixels = transforms.whole(data, self.width, self.height, grey=len(self.mean) == 1)
        resize.normalise(out, pixels * np.float32(self.white / 255), self.channels)
        return out

    def label(self, number: int) -> str:
        """Name of a class, or its number if it has none."""
        return readable(self.classes[number]) if number < len(self.classes) else f"class {number}"


def of_photographs(evaluated: Evaluated, classes: Iterable[str] = ()) -> Preparation:
    """Preparation of photographs, as in torchvision's evaluation."""
    mean, deviation = (tuple(float(value) for value in values) for values in transforms.IMAGENET)
    return Preparation(
        height=evaluated.size,
        width=evaluated.size,
        mean=mean,
        deviation=deviation,
        resize=evaluated.resize,
        classes=named(classes),
    )


def of_arrays(size: Sequence[int], channels: Channels, white: float, classes: Iterable[str] = ()) -> Preparation:
    """Preparation for a data set of arrays of `size` (h, w) whose brightest pixel is `white`."""
    height, width = size
    return Preparation(
        height=height,
        width=width,
        mean=tuple(float(value) for value in channels.mean),
        deviation=tuple(float(value) for value in channels.deviation),
        white=white,
        classes=named(classes),
    )


def named(classes: Iterable[str]) -> tuple[str, ...]:
    """Make class names printable; return none if they are too long together."""
    names = tuple(readable(name) for name in classes)
    return names if sum(len(name.encode()) + 3 for name in names) <= NAMES_LIMIT_BYTES else ()


def readable(name: str) -> str:
    """Replace control characters and undecodable bytes by question marks, on one line."""
    text = name.encode(errors="replace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in text)
