"""Counter-based random numbers: a function of seed, lineage, epoch and sample, so checkpoints need no RNG state.

A job's first stage draws by the seed alone. A later stage trains weights that have seen those batches, crops and
mixtures, so it draws others: its `lineage` is a hash of the names of the stages before it.
"""

import hashlib
from typing import Literal

import numpy as np
from numpy.random import Generator, Philox, SeedSequence

Purpose = Literal["order", "augmentation", "mixing"]

# Spawn keys by purpose. "order" has none, as when it was the only purpose: old runs resume unchanged.
_PURPOSES: dict[Purpose, tuple[int, ...]] = {"order": (), "augmentation": (1,), "mixing": (2,)}

# Lineage of first stages, and of checkpoints older than this field.
BY_SEED_ALONE = 0


def descended(lineage: int, stage: str) -> int:
    """Return the lineage of a stage that starts from the weights of a stage of that lineage: never 0, below 2^48.

    A hash over all stage names so far: no two stages that trained the same weights draw the same numbers, even if they
    belong to two jobs and have the same name.
    """
    digest = hashlib.blake2b(f"{lineage}/{stage}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little") | 1


def sequence(seed: int, epoch: int, purpose: Purpose, lineage: int) -> SeedSequence:
    """Return the seed sequence of an epoch for one purpose."""
    return SeedSequence([seed, epoch, *_PURPOSES[purpose]], spawn_key=(lineage,) if lineage else ())


class SampleRNG:
    """Generators for the samples of an epoch, or for its pairs to mix, by index."""

    def __init__(self, seed: int, epoch: int, purpose: Purpose, lineage: int = BY_SEED_ALONE) -> None:
        self._key = sequence(seed, epoch, purpose, lineage).generate_state(2, np.uint64)

    def of(self, index: int) -> Generator:
        """Return a new generator of the sample: Philox counts in the first word, the sample is the second."""
        return Generator(Philox(key=self._key, counter=np.array([0, index, 0, 0], np.uint64)))
