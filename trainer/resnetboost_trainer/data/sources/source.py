"""The interface of a data source: its entry in the registry, and what its reader returns."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.data.image_dataset import Contents
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.failures import ConfigError

Crop = Literal["Central", "Padded", "RandomResized"]


class LabelledFiles(Contents, Protocol):
    """Labelled files with a hash of their own."""

    def digest(self) -> str:
        """Return a hash that differs for other files."""


class Files(NamedTuple):
    """Training and test images of any size in files, and the names of their classes, if known."""

    train: LabelledFiles
    test: LabelledFiles
    classes: tuple[str, ...]


def unnamed(_: config.Dataset) -> tuple[str, ...]:
    """Return no names: classes are shown by number."""
    return ()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Registry entry of a data source: its reader, and the default augmentation of its images.

    `path` describes what `dataset.path` must be; None if the source takes no path. Readers receive the job's data set
    and its number of classes. `arrays` returns values of any type and scale, which are normalised on loading; `pixels`
    returns bytes, which are normalised when they are used; `files` leaves the images on disk, and `streamed` in object
    storage; a source without it has its files copied to this machine first. `class_names` is for
    arrays and pixels; files have their own. `white` is the value of a white pixel in arrays, where it is known.
    """

    arrays: Callable[[config.Dataset, int], Arrays] | None = None
    pixels: Callable[[config.Dataset, int], Arrays] | None = None
    files: Callable[[config.Dataset, int], Files] | None = None
    streamed: Callable[[config.Dataset, int, ObjectStorage], Files] | None = None
    path: str | None = None
    class_names: Callable[[config.Dataset], tuple[str, ...]] = unnamed
    crop: Crop = "Central"
    horizontal_flip: float = 0.0
    white: float | None = None


def place(dataset: config.Dataset) -> Path:
    """Return the data set's path. Raises ConfigError if it is missing."""
    if dataset.path is None:
        raise ConfigError(f"dataset.path: missing; dataset.name: {dataset.name} needs it")
    return Path(dataset.path)
