"""Image transforms: decode, crop, resize, change colours and normalise photographs. Draws no random numbers itself.

JPEGs are decoded by libjpeg-turbo through simplejpeg: the same bits as Pillow's, in half the time. Pillow decodes the
rest (other formats, CMYK, oddities that it tolerates). Both decode without the GIL.
"""

import io
from typing import Any

import msgspec
import numpy as np
import simplejpeg
from numpy.random import Generator
from PIL import Image, ImageEnhance

from resnetboost_trainer.data import resize
from resnetboost_trainer.data.augmentation import Box, Colour, ResizedCrop
from resnetboost_trainer.data.dataset import Channels, Images, Unreadable
from resnetboost_trainer.data.erasing import RandomErasing
from resnetboost_trainer.data.randaugment import RandAugment
from resnetboost_trainer.data.resize import Part, Pixels

# The usual values of ImageNet's training images, given as fractions of 255; also used for other photographs.
IMAGENET = Channels(
    np.array([0.485, 0.456, 0.406], np.float32) * 255, np.array([0.229, 0.224, 0.225], np.float32) * 255
)
SMALLEST = 8  # pixels; a shorter side shows nothing
# Bounds memory: 300 MB decoded, 700 while Pillow converts it, in each thread of the loader.
_MAX_PIXELS = 100_000_000
# Formats that Pillow may decode; other plugins run programs (EPS) or are not for photographs.
_FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
_ENHANCERS: dict[str, Any] = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}
Image.MAX_IMAGE_PIXELS = None  # replaced by _MAX_PIXELS


class Evaluated(msgspec.Struct, frozen=True):
    """The evaluation transform: resize the shorter side to `resize`, then crop the central square of `size`.

    Equals torchvision's Resize and CenterCrop on a Pillow image, including rounding, but resizes only what is kept.
    """

    size: int
    resize: int

    def box(self, width: int, height: int) -> Box:
        """The square to crop, in pixels of the original image."""
        short, long = sorted((width, height))
        resized = int(self.resize * long / short)
        new_width, new_height = (self.resize, resized) if width <= height else (resized, self.resize)
        across, down = width / new_width, height / new_height
        left, top = round((new_width - self.size) / 2), round((new_height - self.size) / 2)
        return Box(left * across, top * down, self.size * across, self.size * down)


class Whole(msgspec.Struct, frozen=True):
    """The whole picture, resized to one size, in grey for one channel; a white pixel becomes `white`."""

    width: int
    height: int
    white: float


class Augmented(msgspec.Struct, frozen=True):
    """The training transform: a random or central crop, a flip with probability `flip`, RandAugment, colour jitter and
    random erasing, in this order.
    """

    crop: ResizedCrop | Evaluated
    flip: float
    colour: Colour | None
    rand_augment: RandAugment | None = None
    erasing: RandomErasing | None = None


def fill(
    out: Images,
    data: bytes,
    transform: Evaluated | Augmented | Whole,
    draw: Generator | None,
    channels: Channels = IMAGENET,
) -> None:
    """Decode, transform and normalise an image file into `out` (channels, h, w): 3 colours and a square, but for
    Whole. Raises Unreadable.
    """
    if isinstance(transform, Whole):
        pixels = whole(data, transform.width, transform.height, grey=len(out) == 1)
        resize.normalise(out, pixels * np.float32(transform.white / 255), channels)
        return
    size = out.shape[1]
    if draw is None or isinstance(transform, Evaluated):
        evaluated = transform if isinstance(transform, Evaluated) else transform.crop
        assert isinstance(evaluated, Evaluated)
        resize.fill(out, _central(data, evaluated), False, channels)
        return
    crop = transform.crop
    part = _central(data, crop) if isinstance(crop, Evaluated) else _cropped(data, crop, size, draw)
    mirrored = bool(draw.random() < transform.flip)
    if transform.colour is None and transform.rand_augment is None:
        resize.fill(out, part, mirrored, channels)
    else:
        image = _changed(resize.resized(part, size, size), mirrored, transform, draw)
        resize.normalise(out, np.asarray(image), channels)
    if transform.erasing is not None:
        transform.erasing.apply(out, draw)


def _changed(image: Image.Image, mirrored: bool, transform: Augmented, draw: Generator) -> Image.Image:
    """Mirror the image if asked for, and change it at random."""
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if transform.rand_augment is not None:
        image = transform.rand_augment.apply(image, draw)
    for name, factor in transform.colour.factors(draw) if transform.colour is not None else ():
        image = turned(image, factor) if name == "hue" else _ENHANCERS[name](image).enhance(factor)
    return image


def whole(data: bytes, width: int, height: int, grey: bool) -> Pixels:
    """Decode a whole image, resized to (height, width, 1 or 3) if necessary. Raises Unreadable."""
    image = Image.fromarray(_decoded(data))
    image = image.convert("L") if grey else image
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(height, width, -1)


def turned(image: Image.Image, turn: float) -> Image.Image:
    """Turn hues by that part of their circle, -0.5 to 0.5: the same bits as torchvision's adjust_hue on a Pillow image.

    Pillow's HSV has 256 hues, so the steps are 1.4 degrees; grey stays grey.
    """
    hue, saturation, value = image.convert("HSV").split()
    hues = [(level + int(255 * turn)) % 256 for level in range(256)]
    return Image.merge("HSV", (hue.point(hues), saturation, value)).convert("RGB")


def check(data: bytes) -> None:
    """Raise Unreadable if `fill` would."""
    _decoded(data)


def _central(data: bytes, crop: Evaluated) -> Part:
    pixels = _decoded(data)
    return Part(pixels, crop.box(pixels.shape[1], pixels.shape[0]))


def _cropped(data: bytes, crop: ResizedCrop, size: int, draw: Generator) -> Part:
    header = _header(data)
    if header is None:
        pixels = _decoded(data)
        return Part(pixels, crop.box(pixels.shape[1], pixels.shape[0], draw))
    width, height = header
    box = crop.box(width, height, draw)
    pixels = _decoded(data, header, _reduction(min(box.width, box.height), size))
    across, down = pixels.shape[1] / width, pixels.shape[0] / height
    return Part(pixels, Box(box.left * across, box.top * down, box.width * across, box.height * down))


def _reduction(side: float, size: int) -> int:
    """Largest factor by which a JPEG may be decoded smaller, which is cheap, without being enlarged afterwards."""
    return next((factor for factor in (8, 4, 2) if side >= factor * size), 1)


def _header(data: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG that simplejpeg can decode, else None."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if colours not in ("YCbCr", "RGB", "GRAY", "Gray"):
        return None
    _check_size(width, height)
    return width, height


def _decoded(data: bytes, header: tuple[int, int] | None = None, reduction: int = 1) -> Pixels:
    """Decode to pixels (h, w, 3), at 1 / `reduction` of the size. Raises Unreadable."""
    header = _header(data) if header is None else header
    if header is not None:
        width, height = header
        least = {"min_width": -(-width // reduction), "min_height": -(-height // reduction), "min_factor": reduction}
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", **(least if reduction > 1 else {}))
        except ValueError:
            pass  # Pillow accepts more, or has a better error message
        else:
            return pixels
    return _decoded_by_pillow(data)


def _decoded_by_pillow(data: bytes) -> Pixels:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(*image.size)
            if image.mode.startswith(("I", "F")):  # Pillow would clip the values at 255: white
                raise Unreadable("it has more than 8 bits for each colour; save it with 8")
            return np.asarray(image.convert("RGB"))
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise many kinds of errors on invalid data
        reason = " ".join(str(error).split()).partition(" <")[0] or type(error).__name__
        raise Unreadable(f"it cannot be decoded: {reason[:200]}") from None


def _check_size(width: int, height: int) -> None:
    if min(width, height) < SMALLEST:
        raise Unreadable(f"it has {width} x {height} pixels, and {SMALLEST} are the least for a side")
    if width * height > _MAX_PIXELS:
        raise Unreadable(f"it has {width} x {height} pixels, and {_MAX_PIXELS} are the most")
