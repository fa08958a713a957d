"""Random augmentation of training images: crops, flips and colours, from given generators. No decoding or resizing.

Crops and colours follow torchvision's RandomResizedCrop, RandomCrop(padding), RandomHorizontalFlip and ColorJitter.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from resnetboost_trainer.data.erasing import RandomErasing
from resnetboost_trainer.data.randaugment import RandAugment

_ATTEMPTS = 10


class Box(NamedTuple):
    """A rectangle of an image, in pixels, possibly fractional."""

    left: float
    top: float
    width: float
    height: float


class ResizedCrop(msgspec.Struct, frozen=True, kw_only=True):
    """Random crop, resized afterwards: bounds of its share of the area and of its width over height.

    Szegedy et al. 2015, §6.
    """

    min_scale: float
    max_scale: float
    min_ratio: float
    max_ratio: float

    def box(self, width: int, height: int, draw: Generator) -> Box:
        """Draw a crop; after ten attempts that do not fit, take the largest central one with an allowed ratio."""
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
    """Colour jitter: most that brightness, contrast and saturation differ from 1, and that hues turn, in circles."""

    brightness: float
    contrast: float
    saturation: float
    hue: float

    def factors(self, draw: Generator) -> list[tuple[str, float]]:
        """Draw the changes in random order: name and factor, or for the hue the part of a circle to turn by."""
        ranges = {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}
        drawn = [(name, draw.uniform(max(0.0, 1 - by), 1 + by)) for name, by in ranges.items() if by]
        if self.hue:
            drawn.append(("hue", draw.uniform(-self.hue, self.hue)))
        return [drawn[place] for place in draw.permutation(len(drawn))]


class ArrayAugmentation(msgspec.Struct, frozen=True):
    """Augmentation of images in memory: pad by `padding`, crop to the same size, flip with probability `flip`.

    RandAugment follows, for images of bytes, and random erasing of normalised images.
    """

    padding: int
    flip: float
    rand_augment: RandAugment | None = None
    erasing: RandomErasing | None = None

    def apply(self, images: NDArray[Any], blank: NDArray[np.float32], draws: Sequence[Generator]) -> NDArray[Any]:
        """Augment images (n, c, h, w); `blank` (c,) is the border's colour. Returns (n, c, h, w) of the same type."""
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
            if self.rand_augment is not None:
                out[index] = _of_picture(self.rand_augment.apply(_picture(out[index]), draw))
        return out

    def erase(self, images: NDArray[np.float32], draws: Sequence[Generator]) -> None:
        """Erase parts of normalised images (n, c, h, w) in place, with the generators that `apply` has used."""
        if self.erasing is not None:
            for image, draw in zip(images, draws, strict=True):
                self.erasing.apply(image, draw)


def _picture(pixels: NDArray[Any]) -> Image.Image:
    """The Pillow image of bytes (1 or 3, h, w)."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _of_picture(image: Image.Image) -> NDArray[np.uint8]:
    """The bytes of a Pillow image (1 or 3, h, w)."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
