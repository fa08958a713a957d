"""What is done at random to training images, given the numbers drawn; it neither decodes nor resizes.

Crops and colours follow torchvision's RandomResizedCrop, RandomCrop(padding), RandomHorizontalFlip and ColorJitter.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_ATTEMPTS = 10


class Box(NamedTuple):
    """A part of an image in its pixels, from `left` and `top`, which may be fractions."""

    left: float
    top: float
    width: float
    height: float


class ResizedCrop(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the image's area, and width over height, that a crop is drawn from (Szegedy et al. 2015, §6)."""

    min_scale: float
    max_scale: float
    min_ratio: float
    max_ratio: float

    def box(self, width: int, height: int, draw: Generator) -> Box:
        """A crop; the largest central one with an allowed ratio where ten attempts found none that fits."""
        for _ in range(_ATTEMPTS):
            area = width * height * draw.uniform(self.min_scale, self.max_scale)
            ratio = math.exp(draw.uniform(math.log(self.min_ratio), math.log(self.max_ratio)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return Box(int(draw.integers(width - w + 1)), int(draw.integers(height - h + 1)), w, h)
        w = min(width, round(height * self.max_ratio))
        h = min(height, round(width / self.min_ratio))
        return Box((width - w) // 2, (height - h) // 2, w, h)


class Colour(msgspec.Struct, frozen=True, kw_only=True):
    """How far brightness, contrast and saturation may go from 1, each way, and hues be turned, in circles."""

    brightness: float
    contrast: float
    saturation: float
    hue: float

    def factors(self, draw: Generator) -> list[tuple[str, float]]:
        """What to change by which factor, or for the hue by which part of a circle, in the order to do it."""
        ranges = {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}
        drawn = [(name, draw.uniform(max(0.0, 1 - by), 1 + by)) for name, by in ranges.items() if by]
        if self.hue:
            drawn.append(("hue", draw.uniform(-self.hue, self.hue)))
        return [drawn[place] for place in draw.permutation(len(drawn))]


class ArrayAugmentation(msgspec.Struct, frozen=True):
    """For images in memory: a crop of the same size out of a border of `padding` pixels, and a flip now and then."""

    padding: int
    flip: float

    def apply(self, images: NDArray[Any], blank: NDArray[np.float32], draws: Sequence[Generator]) -> NDArray[Any]:
        """Shapes (n, c, h, w), (c,) the colour of the border -> (n, c, h, w) of the images' type."""
        n, channels, height, width = images.shape
        reach = self.padding
        padded = np.empty((n, channels, height + 2 * reach, width + 2 * reach), images.dtype)
        padded[...] = blank.astype(images.dtype)[:, None, None]
        padded[:, :, reach : reach + height, reach : reach + width] = images
        out = np.empty_like(images)
        for index, draw in enumerate(draws):
            top, left = (int(offset) for offset in draw.integers(2 * reach + 1, size=2))
            part = padded[index, :, top : top + height, left : left + width]
            out[index] = part[:, :, ::-1] if draw.random() < self.flip else part
        return out
