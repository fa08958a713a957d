"""What the registry of data sources has to know of each, and what a source's reader returns."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from resnetboost_trainer import config
from resnetboost_trainer.data.image_dataset import Contents
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.failures import ConfigError

Crop = Literal["Central", "Padded", "RandomResized"]


class LabelledFiles(Contents, Protocol):
    """Labelled files that can be told from others."""

    def digest(self) -> str:
        """Return a hash that differs for other files."""


class Files(NamedTuple):
    """Images of any size in files, to train on and to test with, and the names of their classes, as far as known."""

    train: LabelledFiles
    test: LabelledFiles
    classes: tuple[str, ...]


def unnamed(_: config.Dataset) -> tuple[str, ...]:
    """Return no names: the classes go by their numbers."""
    return ()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the registry: how to read the data set that the job describes, and what its images get by default.

    `path` says what `dataset.path` has to be; without it the source takes none. Readers get the job's data set and its
    number of classes. A reader of `arrays` returns values of any type and scale, which are normalised when they are
    loaded; one of `pixels` returns bytes, which stay bytes and are normalised when they are used; one of `files`
    leaves the images where they are. `class_names` is for arrays and pixels; files come with theirs.
    """

    arrays: Callable[[config.Dataset, int], Arrays] | None = None
    pixels: Callable[[config.Dataset, int], Arrays] | None = None
    files: Callable[[config.Dataset, int], Files] | None = None
    path: str | None = None
    class_names: Callable[[config.Dataset], tuple[str, ...]] = unnamed
    crop: Crop = "Central"
    horizontal_flip: float = 0.0


def place(dataset: config.Dataset) -> Path:
    """Return the data set's path, of a source that needs one."""
    if dataset.path is None:
        raise ConfigError(f"dataset.path: missing; dataset.name: {dataset.name} needs it")
    return Path(dataset.path)
