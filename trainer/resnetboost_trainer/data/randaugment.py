"""RandAugment (Cubuk et al. 2020): operations drawn at random, by Pillow.

Operations, magnitudes and the order of draws are those of torchvision's transforms.RandAugment on a Pillow image, with
nearest neighbours and black borders; results are the same to the bit. Each magnitude is a float32, as there.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

Picture = Image.Image
# (numBins, width, height) -> the operation's magnitude in each bin (numBins,).
Range = Callable[[int, int, int], NDArray[np.float32]]


class Operation(NamedTuple):
    """Changes a picture by a magnitude out of a range, or by its opposite half of the time if it is `signed`."""

    change: Callable[[Picture, float], Picture]
    range: Range | None = None
    signed: bool = True


class RandAugment(msgspec.Struct, frozen=True, kw_only=True):
    """Draws `num_ops` operations and applies each with the magnitude number `magnitude` of `num_bins`."""

    num_ops: int
    magnitude: int
    num_bins: int

    def apply(self, image: Picture, draw: Generator) -> Picture:
        """Return the changed picture, of the same size and mode, L or RGB."""
        for _ in range(self.num_ops):
            operation = OPERATIONS[_NAMES[int(draw.integers(len(_NAMES)))]]
            magnitude = 0.0
            if operation.range is not None:
                magnitude = float(operation.range(self.num_bins, *image.size)[self.magnitude])
                if operation.signed and draw.integers(2):
                    magnitude = -magnitude
            image = operation.change(image, magnitude)
        return image


def _evenly(start: float, end: float, bins: int) -> NDArray[np.float32]:
    """Return float32 numbers from start to end as torch.linspace does: each half is counted from its own end."""
    first, last, place = np.float32(start), np.float32(end), np.arange(bins, dtype=np.float32)
    step = np.float32((last - first) / np.float32(bins - 1))
    upwards, downwards = first + step * place, last - step * (np.float32(bins - 1) - place)
    found: NDArray[np.float32] = np.where(np.arange(bins) < bins // 2, upwards, downwards)
    return found


def _up_to(highest: float) -> Range:
    return lambda bins, width, height: _evenly(0.0, highest, bins)


def _bits(bins: int, width: int, height: int) -> NDArray[np.float32]:
    """Bits of each colour that are kept: 8 to 4."""
    dropped: NDArray[np.float32] = np.arange(bins, dtype=np.float32) / np.float32((bins - 1) / 4)
    return np.float32(8) - dropped.round()


def _sheared_x(image: Picture, by: float) -> Picture:
    return _mapped(image, 1.0, _slope(by), 0.0, 0.0, 1.0, 0.0)


def _sheared_y(image: Picture, by: float) -> Picture:
    return _mapped(image, 1.0, 0.0, 0.0, _slope(by), 1.0, 0.0)


def _moved_x(image: Picture, by: float) -> Picture:
    return _mapped(image, 1.0, 0.0, -int(by), 0.0, 1.0, 0.0)


def _moved_y(image: Picture, by: float) -> Picture:
    return _mapped(image, 1.0, 0.0, 0.0, 0.0, 1.0, -int(by))


def _slope(by: float) -> float:
    """The slope in torchvision's rounding, which goes through an angle in degrees: it decides ties of pixels."""
    return math.tan(math.radians(math.degrees(math.atan(by))))


def _mapped(image: Picture, *matrix: float) -> Picture:
    """Take each pixel (x, y) from (a x + b y + c, d x + e y + f), or black from outside."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


OPERATIONS: dict[str, Operation] = {
    "Identity": Operation(lambda image, _: image),
    "ShearX": Operation(_sheared_x, _up_to(0.3)),
    "ShearY": Operation(_sheared_y, _up_to(0.3)),
    "TranslateX": Operation(_moved_x, lambda bins, width, height: _evenly(0.0, 150 / 331 * width, bins)),
    "TranslateY": Operation(_moved_y, lambda bins, width, height: _evenly(0.0, 150 / 331 * height, bins)),
    "Rotate": Operation(lambda image, by: image.rotate(by, Image.Resampling.NEAREST), _up_to(30.0)),
    "Brightness": Operation(lambda image, by: ImageEnhance.Brightness(image).enhance(1 + by), _up_to(0.9)),
    "Color": Operation(lambda image, by: ImageEnhance.Color(image).enhance(1 + by), _up_to(0.9)),
    "Contrast": Operation(lambda image, by: ImageEnhance.Contrast(image).enhance(1 + by), _up_to(0.9)),
    "Sharpness": Operation(lambda image, by: ImageEnhance.Sharpness(image).enhance(1 + by), _up_to(0.9)),
    "Posterize": Operation(lambda image, bits: ImageOps.posterize(image, int(bits)), _bits, signed=False),
    "Solarize": Operation(
        ImageOps.solarize,  # type: ignore[arg-type]  # Pillow compares with any number
        lambda bins, width, height: _evenly(255.0, 0.0, bins),
        signed=False,
    ),
    "AutoContrast": Operation(lambda image, _: ImageOps.autocontrast(image)),
    "Equalize": Operation(lambda image, _: ImageOps.equalize(image)),
}
_NAMES = tuple(OPERATIONS)
