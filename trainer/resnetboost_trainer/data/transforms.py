"""Files of photographs as normalised arrays: decoding, cropping, resizing, colours; it does not say what to draw.

JPEGs are decoded by libjpeg-turbo through simplejpeg: the bits that Pillow gives, in half of its time. What it does not
take (other formats, CMYK, oddities that Pillow tolerates) goes to Pillow. Both decode and resize without Python's lock.
"""

import io
from typing import Any

import msgspec
import numpy as np
import simplejpeg
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from resnetboost_trainer.data.augmentation import Box, Colour, ResizedCrop
from resnetboost_trainer.data.dataset import Channels, Images, Unreadable

# Of ImageNet's training images as fractions of 255, as everybody takes them, also for other photographs.
IMAGENET = Channels(
    np.array([0.485, 0.456, 0.406], np.float32) * 255, np.array([0.229, 0.224, 0.225], np.float32) * 255
)
SMALLEST = 8  # pixels; a shorter side has nothing to see
# A file must not claim all memory: 300 MB decoded, 700 while Pillow converts it, and that in each thread of the feed.
_MAX_PIXELS = 100_000_000
# What Pillow may take the bytes for; others of its plugins run programs (EPS) or were never meant for photographs.
_FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
_ENHANCERS: dict[str, Any] = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}
Pixels = NDArray[np.uint8]
Image.MAX_IMAGE_PIXELS = None  # its own limit warns and raises at two other numbers


class Evaluated(msgspec.Struct, frozen=True):
    """The evaluation transform: the shorter side resized to `resize`, then the central square of `size`.

    As torchvision's Resize and CenterCrop on a Pillow image, to its rounding, in one resize of what is kept.
    """

    size: int
    resize: int

    def box(self, width: int, height: int) -> Box:
        """The square, in the pixels of the image as it is."""
        short, long = sorted((width, height))
        resized = int(self.resize * long / short)
        new_width, new_height = (self.resize, resized) if width <= height else (resized, self.resize)
        across, down = width / new_width, height / new_height
        left, top = round((new_width - self.size) / 2), round((new_height - self.size) / 2)
        return Box(left * across, top * down, self.size * across, self.size * down)


class Augmented(msgspec.Struct, frozen=True):
    """The training transform: a crop at random or the central one, a flip with that chance, and other colours."""

    crop: ResizedCrop | Evaluated
    flip: float
    colour: Colour | None


def fill(
    out: Images,
    data: bytes,
    transform: Evaluated | Augmented,
    draw: Generator | None,
    channels: Channels = IMAGENET,
) -> None:
    """The image of a file's content, transformed and normalised, into `out` (3, size, size). Raises Unreadable."""
    size = out.shape[1]
    if draw is None or isinstance(transform, Evaluated):
        evaluated = transform if isinstance(transform, Evaluated) else transform.crop
        assert isinstance(evaluated, Evaluated)
        pixels = _decoded(data)
        box = evaluated.box(pixels.shape[1], pixels.shape[0])
        normalise(out, np.asarray(_resized(pixels, box, size)), channels)
        return
    image = _cropped(data, transform.crop, size, draw)
    flipped = draw.random() < transform.flip
    for name, factor in transform.colour.factors(draw) if transform.colour is not None else ():
        image = turned(image, factor) if name == "hue" else _ENHANCERS[name](image).enhance(factor)
    array = np.asarray(image)
    normalise(out, array[:, ::-1] if flipped else array, channels)


def whole(data: bytes, width: int, height: int, grey: bool) -> Pixels:
    """All of the image in that size, (height, width, 1 or 3), as it is where it has it. Raises Unreadable."""
    image = Image.fromarray(_decoded(data))
    image = image.convert("L") if grey else image
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(height, width, -1)


def turned(image: Image.Image, turn: float) -> Image.Image:
    """Hues turned by that part of their circle, -0.5 to 0.5: torchvision's adjust_hue of a Pillow image, to the bit.

    Pillow's HSV has 256 hues, so it is in steps of 1.4 degrees; grey stays grey.
    """
    hue, saturation, value = image.convert("HSV").split()
    hues = [(level + int(255 * turn)) % 256 for level in range(256)]
    return Image.merge("HSV", (hue.point(hues), saturation, value)).convert("RGB")


def check(data: bytes) -> None:
    """Raises Unreadable for what `fill` would not take."""
    _decoded(data)


def _cropped(data: bytes, crop: ResizedCrop | Evaluated, size: int, draw: Generator) -> Image.Image:
    if isinstance(crop, Evaluated):
        pixels = _decoded(data)
        return _resized(pixels, crop.box(pixels.shape[1], pixels.shape[0]), size)
    header = _header(data)
    if header is None:
        pixels = _decoded(data)
        return _resized(pixels, crop.box(pixels.shape[1], pixels.shape[0], draw), size)
    width, height = header
    box = crop.box(width, height, draw)
    pixels = _decoded(data, header, _reduction(min(box.width, box.height), size))
    across, down = pixels.shape[1] / width, pixels.shape[0] / height
    return _resized(pixels, Box(box.left * across, box.top * down, box.width * across, box.height * down), size)


def _reduction(side: float, size: int) -> int:
    """By how much a JPEG may be decoded smaller, which is cheap, and still be reduced afterwards."""
    return next((factor for factor in (8, 4, 2) if side >= factor * size), 1)


def _header(data: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG that simplejpeg decodes; None for anything else."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if colours not in ("YCbCr", "RGB", "GRAY", "Gray"):
        return None
    _check_size(width, height)
    return width, height


def _decoded(data: bytes, header: tuple[int, int] | None = None, reduction: int = 1) -> Pixels:
    """Pixels (h, w, 3), decoded to a fraction of its size by `reduction`. Raises Unreadable."""
    header = _header(data) if header is None else header
    if header is not None:
        width, height = header
        least = {"min_width": -(-width // reduction), "min_height": -(-height // reduction), "min_factor": reduction}
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", **(least if reduction > 1 else {}))
        except ValueError:
            pass  # Pillow takes more, or says better what is wrong
        else:
            return pixels
    return _decoded_by_pillow(data)


def _decoded_by_pillow(data: bytes) -> Pixels:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(*image.size)
            if image.mode.startswith(("I", "F")):  # Pillow would cut its numbers at 255: white
                raise Unreadable("it has more than 8 bits for each colour; save it with 8")
            return np.asarray(image.convert("RGB"))
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise a dozen kinds on bytes that are not theirs
        reason = " ".join(str(error).split()).partition(" <")[0] or type(error).__name__
        raise Unreadable(f"it cannot be decoded: {reason[:200]}") from None


def _check_size(width: int, height: int) -> None:
    if min(width, height) < SMALLEST:
        raise Unreadable(f"it has {width} x {height} pixels, and {SMALLEST} are the least for a side")
    if width * height > _MAX_PIXELS:
        raise Unreadable(f"it has {width} x {height} pixels, and {_MAX_PIXELS} are the most")


def _resized(pixels: Pixels, box: Box, size: int) -> Image.Image:
    """The box as a square of that size, bilinear, with what lies around the box counted in at its border.

    Only the part that matters is handed to Pillow, which copies what it gets.
    """
    height, width = pixels.shape[:2]
    margin = 2 + int(max(box.width, box.height) / size)
    left, top = max(0, int(box.left) - margin), max(0, int(box.top) - margin)
    right, bottom = (
        min(width, int(box.left + box.width) + 1 + margin),
        min(height, int(box.top + box.height) + 1 + margin),
    )
    # NumPy turns a part into bytes pixel by pixel, 0.7 ms, and copies it in rows in 0.05 ms.
    image = Image.fromarray(np.ascontiguousarray(pixels[top:bottom, left:right]))
    x, y = box.left - left, box.top - top
    corner = min(x + box.width, right - left), min(y + box.height, bottom - top)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(x, y, *corner))


def normalise(out: Images, pixels: NDArray[Any], channels: Channels) -> None:
    """Pixels (h, w, c) into `out` (c, h, w): by channel, minus the mean and divided by the deviation."""
    np.subtract(pixels.transpose(2, 0, 1), channels.mean[:, None, None], out=out)
    np.divide(out, channels.deviation[:, None, None], out=out)
