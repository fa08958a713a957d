"""Random erasing (Zhong et al. 2017) of a rectangle of a normalised image, as torchvision's RandomErasing does it."""

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_ATTEMPTS = 10


class Area(NamedTuple):
    """A rectangle of an image, in whole pixels."""

    left: int
    top: int
    width: int
    height: int


class RandomErasing(msgspec.Struct, frozen=True, kw_only=True):
    """Erases a rectangle with probability `probability`: bounds of its share of the area and of its height over width.

    It is filled with zeros, the mean colour of normalised images, or with normal `noise`.
    """

    probability: float
    min_scale: float
    max_scale: float
    min_ratio: float
    max_ratio: float
    noise: bool

    def apply(self, image: NDArray[np.float32], draw: Generator) -> None:
        """Change a normalised image (c, h, w) in place."""
        if draw.random() >= self.probability:
            return
        area = self.area(image.shape[2], image.shape[1], draw)
        if area is None:
            return
        part = image[:, area.top : area.top + area.height, area.left : area.left + area.width]
        part[...] = draw.standard_normal(part.shape, np.float32) if self.noise else 0

    def area(self, width: int, height: int, draw: Generator) -> Area | None:
        """Draw a rectangle; None after ten attempts that do not fit into the image, which then stays as it is."""
        for _ in range(_ATTEMPTS):
            pixels = width * height * draw.uniform(self.min_scale, self.max_scale)
            ratio = math.exp(draw.uniform(math.log(self.min_ratio), math.log(self.max_ratio)))
            h, w = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
            if h < height and w < width:
                top, left = int(draw.integers(height - h + 1)), int(draw.integers(width - w + 1))
                return Area(left, top, w, h)
        return None
