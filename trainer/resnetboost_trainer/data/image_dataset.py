"""A split whose images are stored as encoded files, decoded each time they are used."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data import read_errors, transforms
from resnetboost_trainer.data.dataset import Channels, Images, Indices, Unreadable
from resnetboost_trainer.data.rng import SampleRNG
from resnetboost_trainer.data.stream import Selection, Stream
from resnetboost_trainer.data.transforms import Augmented, Evaluated, Whole


class Contents(Protocol):
    """Labelled image files, in a folder or in a container file."""

    @property
    def labels(self) -> NDArray[np.int32]:
        """Class of each file (n,)."""

    @property
    def stream(self) -> Selection | Stream | None:
        """What fetches the files ahead of `read`; None if they are on this machine."""

    def name(self, index: int) -> str:
        """Location of the file, for messages."""

    def read(self, index: int) -> bytes:
        """Return the file's content; callable from any thread. Raises OSError, without `errno` for bad content."""


class ImageDataset:
    """Colour images decoded from `contents`, transformed to one size (h, w), and normalised by `channels`."""

    each = 1

    def __init__(
        self,
        contents: Contents,
        transform: Evaluated | Augmented | Whole,
        size: tuple[int, int],
        channels: Channels = transforms.IMAGENET,
    ) -> None:
        self.contents, self.transform, self.channels = contents, transform, channels
        self.shape = (3, *size)

    @property
    def labels(self) -> NDArray[np.int32]:
        return self.contents.labels

    @property
    def stream(self) -> Selection | Stream | None:
        return self.contents.stream

    def name(self, index: int) -> str:
        return self.contents.name(index)

    def fill(self, out: Images, indices: Indices, rng: SampleRNG | None) -> None:
        for place, index in enumerate(indices):
            try:
                data = self.contents.read(int(index))
            except OSError as error:
                if read_errors.is_outage(error):  # fails the attempt instead of counting as a corrupt image
                    raise read_errors.failure(f"{self.name(int(index))}: cannot be read", error) from None
                raise Unreadable(f"it cannot be read: {error.strerror or error}") from None
            draw = None if rng is None else rng.of(int(index))
            transforms.fill(out[place], data, self.transform, draw, self.channels)
