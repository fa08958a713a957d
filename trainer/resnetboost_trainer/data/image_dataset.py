"""A part of a data set whose images are files' contents, decoded whenever they are wanted."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data import read_errors, transforms
from resnetboost_trainer.data.dataset import Images, Indices, Unreadable
from resnetboost_trainer.data.rng import SampleRNG
from resnetboost_trainer.data.transforms import Augmented, Evaluated


class Contents(Protocol):
    """Labelled files, wherever they are."""

    @property
    def labels(self) -> NDArray[np.int32]:
        """Class of each file (n,)."""

    def name(self, index: int) -> str:
        """Where the file is, for people."""

    def read(self, index: int) -> bytes:
        """Return the file's content; callable from any thread. Raises OSError, without `errno` for bad content."""


class ImageDataset:
    """Colour images of `transform`'s size out of those files."""

    each = 1

    def __init__(self, contents: Contents, transform: Evaluated | Augmented, size: int) -> None:
        self.contents, self.transform = contents, transform
        self.shape = (3, size, size)

    @property
    def labels(self) -> NDArray[np.int32]:
        return self.contents.labels

    def name(self, index: int) -> str:
        return self.contents.name(index)

    def fill(self, out: Images, indices: Indices, rng: SampleRNG | None) -> None:
        for place, index in enumerate(indices):
            try:
                data = self.contents.read(int(index))
            except OSError as error:
                if read_errors.is_outage(error):  # it must end the attempt, not an image
                    raise read_errors.failure(f"{self.name(int(index))}: cannot be read", error) from None
                raise Unreadable(f"it cannot be read: {error.strerror or error}") from None
            transforms.fill(out[place], data, self.transform, None if rng is None else rng.of(int(index)))
