"""The interface of a split (training or test set) for the loader, and the split that is held in memory."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data.augmentation import ArrayAugmentation
from resnetboost_trainer.data.rng import SampleRNG
from resnetboost_trainer.data.stream import Selection, Stream

Images = NDArray[np.float32]
Indices = NDArray[np.int64]


class Unreadable(Exception):
    """An image cannot be used; the message says why."""


class Split(Protocol):
    """A training or test set: `n` labelled images of one size, accessed by index."""

    @property
    def labels(self) -> NDArray[np.int32]:
        """Class of each sample (n,)."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image written by `fill`."""

    @property
    def each(self) -> int:
        """Images per task of a thread; 0 if `fill` only copies, which needs no thread."""

    @property
    def stream(self) -> Selection | Stream | None:
        """What fetches the images ahead of `fill`; None if they are on this machine."""

    def name(self, index: int) -> str:
        """Origin of the sample, for messages."""

    def fill(self, out: Images, indices: Indices, rng: SampleRNG | None) -> None:
        """Write the normalised images into `out` (k, c, h, w), augmented if there is an `rng`; from any thread.

        Raises Unreadable.
        """


class Channels(NamedTuple):
    """Mean and standard deviation of each channel (c,), to normalise pixels: (pixel - mean) / deviation."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]


class ArraySplit:
    """Images in memory: `pixels` (n, c, h, w), already normalised if `channels` is None.

    `blank` (c,) is a black pixel in the units of `pixels`, for borders.
    """

    stream = None

    def __init__(
        self,
        pixels: NDArray[Any],
        labels: NDArray[np.int32],
        channels: Channels | None = None,
        blank: NDArray[np.float32] | None = None,
        augmentation: ArrayAugmentation | None = None,
    ) -> None:
        self.pixels, self.labels, self.channels = pixels, labels, channels
        self.augmentation = augmentation
        self.blank = np.zeros(pixels.shape[1], np.float32) if blank is None else blank

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    @property
    def each(self) -> int:
        return 64 if self.augmentation is not None or self.channels is not None else 0

    def name(self, index: int) -> str:
        return f"sample {index}"

    def fill(self, out: Images, indices: Indices, rng: SampleRNG | None) -> None:
        augmentation = self.augmentation if rng is not None else None
        draws = [rng.of(int(index)) for index in indices] if augmentation is not None and rng is not None else []
        chosen = self.pixels[indices]
        if augmentation is not None:
            chosen = augmentation.apply(chosen, self.blank, draws)
        if self.channels is None:
            out[...] = chosen
        else:
            np.subtract(chosen, self.channels.mean[:, None, None], out=out)
            np.divide(out, self.channels.deviation[:, None, None], out=out)
        if augmentation is not None:
            augmentation.erase(out, draws)
