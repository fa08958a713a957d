"""Preprocessing of a network's input images. Checkpoints record it, so that the network can be used elsewhere.

Training, evaluation, prediction, export, the model card and teachers all take it from here, so that one image is one
input. Independent of how training data are read. A preparation from a checkpoint is untrusted; `problem` checks it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data import transforms
from resnetboost_trainer.data.dataset import Channels, Images
from resnetboost_trainer.data.transforms import Evaluated, Whole

# What the numbers of a data set's images are: bytes, levels whose white value the data source declares, or floats.
Values = Literal["Bytes", "Levels", "Floats"]

BYTE = 255.0
# Numbers that are 0 or more, the largest exactly one of these, are images from black to white.
_USUAL_WHITE = (1.0, BYTE)
# Data sets of which one deviates by so many times as much as the other are not on the same scale.
_MOST_SPREAD = 8.0
# Data sources of older versions, which did not record what their images' numbers are; the others had bytes.
_EARLIER: dict[str, Values | None] = {"digits": "Levels", "npz": None}

MAX_SIDE = 4096  # pixels; a preparation with more is damaged
# More names would not fit into a checkpoint's manifest; such classes are shown by number.
NAMES_LIMIT_BYTES = 1 << 18


class UnknownScale(Exception):
    """Nothing says which number of some images stands for which of others; the message says why."""


class Scale(NamedTuple):
    """What a data set's numbers are, and which of them is white: a guess if it is only the largest one."""

    values: Values
    white: float
    guessed: bool = False


class Preparation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Turns a picture into (channels, height, width), each channel (pixel * white / 255 - mean) / deviation.

    With `resize` the shorter side is resized to that length and the central square is cropped, as in the evaluation of
    photographs; without, the whole picture is resized. One channel is grey, three are colours. `classes` are the names
    of the first classes, possibly none. Mean and deviation are in the training images' numbers, `values` (None: an
    older version did not record it). `white` is that of a white pixel; with `white_guessed` it is only the largest one,
    and pictures cannot be prepared.
    """

    height: int
    width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    white: float = 255.0
    resize: int | None = None
    classes: tuple[str, ...] = ()
    values: Values | None = None
    white_guessed: bool = False

    @property
    def transform(self) -> Evaluated | Whole:
        """The transform of a picture before it is normalised."""
        if self.resize is not None:
            return Evaluated(self.width, self.resize)
        return Whole(self.width, self.height, self.white)

    @property
    def numbers(self) -> str:
        """Describe the numbers of the training images in a few words."""
        if self.values == "Bytes" and not self.white_guessed:
            return "bytes"
        return f"{(self.values or 'Numbers').lower()} up to {self.white:.6g}"

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
        transforms.fill(out, data, self.transform, None, self.channels)
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
        values="Bytes",
    )


def scale(dtype: np.dtype[Any], images: NDArray[Any], declared: float | None = None) -> Scale:
    """Return the scale of training images that had this type when they were read.

    `declared` is the white value that their data source declares. Bytes that stay in the lower half may be levels.
    """
    if declared is not None:
        return Scale("Levels", declared)
    brightest = float(images.max())
    brightest = brightest if brightest > 0 else 1.0
    if dtype == np.uint8:
        return Scale("Bytes", brightest, guessed=True) if brightest < BYTE / 2 else Scale("Bytes", BYTE)
    return Scale("Floats", brightest, guessed=brightest not in _USUAL_WHITE or float(images.min()) < 0)


def of_arrays(size: Sequence[int], channels: Channels, scale: Scale, classes: Iterable[str] = ()) -> Preparation:
    """Preparation for a data set of arrays of `size` (h, w) with these means and deviations of its own."""
    height, width = size
    return Preparation(
        height=height,
        width=width,
        mean=tuple(float(value) for value in channels.mean),
        deviation=tuple(float(value) for value in channels.deviation),
        white=scale.white,
        classes=named(classes),
        values=scale.values,
        white_guessed=scale.guessed,
    )


def of_earlier(found: Preparation, source: str) -> Preparation:
    """Complete a preparation that an older version recorded, by the name of its data source.

    It took the brightest training value for white.
    """
    if found.values is not None:
        return found
    values = _EARLIER.get(source, "Bytes")
    return msgspec.structs.replace(
        found, values=values, white_guessed=values is None and found.white not in _USUAL_WHITE
    )


def factor(trained: Preparation, own: Preparation) -> float:
    """Return what a trained network's mean and deviation are multiplied by, for images of another data set.

    `own` is the data set's own preparation. Only two known white values make a factor, never the largest number that
    some images happen to have; so floats fit floats as they are, and nothing else. Raises UnknownScale.
    """
    known = trained.values is not None and not trained.white_guessed and not own.white_guessed
    if known and own.values != "Floats":
        return own.white / trained.white
    if trained.values not in (None, own.values):
        raise UnknownScale(
            f"the network was trained on {trained.numbers}, these images are {own.numbers}, and nothing says which"
            " number is white in both"
        )
    ratios = [ours / theirs for ours, theirs in zip(own.deviation, trained.deviation, strict=True)]
    if not 1 / _MOST_SPREAD <= math.prod(ratios) ** (1 / len(ratios)) <= _MOST_SPREAD:
        raise UnknownScale(
            f"the network was trained on {trained.numbers} with deviation {trained.deviation[0]:.4g}, and these images"
            f" are {own.numbers} with deviation {own.deviation[0]:.4g}: another scale"
        )
    return 1.0


def fitted(own: Preparation, known: Preparation | None) -> Preparation:
    """Return a data set's own preparation with the normalisation of a trained network, if there is one with as many
    channels. Raises UnknownScale.
    """
    if known is None or len(known.mean) != len(own.mean):
        return own
    by = np.float32(factor(known, own))
    mean, deviation = (tuple(float(value) for value in values * by) for values in known.channels)
    return msgspec.structs.replace(own, mean=mean, deviation=deviation)


def of_files(own: Preparation, known: Preparation | None, size: int | None, resize: int | None) -> Preparation:
    """Return the preparation of a data set of picture files whose own one is `own`, for a trained network.

    A network of data in memory is given the whole picture, as by `picture`, unless `resize` asks for a cut one. `size`
    overrides its size. Raises UnknownScale.
    """
    if known is None or known.resize is not None or len(known.mean) != len(own.mean):
        return fitted(own, known)
    if known.white_guessed:
        raise UnknownScale(white_unknown(known))
    if resize is not None:
        # An older version did not record the kind of numbers; with pictures their white value is enough.
        return fitted(own, msgspec.structs.replace(known, values=known.values or "Floats"))
    width, height = (known.width, known.height) if size is None else (size, size)
    return msgspec.structs.replace(known, width=width, height=height, classes=own.classes)


def white_unknown(prepared: Preparation) -> str:
    """Say why pictures cannot be prepared for a network with a guessed white value."""
    return f"the network was trained on {prepared.numbers}, and nothing says which number is white"


def named(classes: Iterable[str]) -> tuple[str, ...]:
    """Make class names printable; return none if they are too long together."""
    names = tuple(readable(name) for name in classes)
    return names if sum(len(name.encode()) + 3 for name in names) <= NAMES_LIMIT_BYTES else ()


def readable(name: str) -> str:
    """Replace control characters and undecodable bytes by question marks, on one line."""
    text = name.encode(errors="replace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in text)
