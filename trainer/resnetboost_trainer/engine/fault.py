"""Names where a training diverged: the step, its batch, and the images of it that are not finite themselves."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from resnetboost_trainer.data.loader import Batch, BatchRequest
from resnetboost_trainer.distributed.communicator import Communicator, as_bytes, from_bytes

# Corrupt images named, of each rank and in a message.
NAMED = 4


class Place(msgspec.Struct, frozen=True):
    """A step, and its batch as epoch and number in it, both counted from 1; `images` are the names of corrupt ones."""

    step: int
    epoch: int
    batch: int
    images: Sequence[str] = ()

    def __str__(self) -> str:
        names = ", ".join(self.images[:NAMED]) + (" and others" if len(self.images) > NAMED else "")
        corrupt = f", in which {names} is not finite itself" if names else ""
        return f"step {self.step}, batch {self.batch} of epoch {self.epoch} of the data order{corrupt}"


def corrupt(batches: Iterable[Batch], requests: Iterable[BatchRequest]) -> list[int]:
    """Indices of the first samples of these batches that are not finite, at most NAMED."""
    found: list[int] = []
    for batch, request in zip(batches, requests, strict=True):
        finite = np.isfinite(batch.images).all(axis=(1, 2, 3))
        found += [int(request.whole[request.first + place]) for place in np.flatnonzero(~finite)]
    return found[:NAMED]


def of_all(own: Sequence[int], communicator: Communicator) -> list[int]:
    """The indices that all ranks found, in the order of the ranks. A collective."""
    rows = communicator.gather(as_bytes([len(own), *own, *[0] * (NAMED - len(own))]))
    gathered = [from_bytes(row) for row in rows]
    return [index for count, *indices in gathered for index in indices[:count]]
