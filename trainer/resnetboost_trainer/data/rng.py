"""Random numbers of an epoch: a function of seed, stages, epoch and sample; a resumed run needs no state of them.

A job's first stage draws by the seed alone. A later stage trains weights that have seen those batches, crops and
mixtures: its `lineage` is another number, made of the names of the stages on the way, and everything is drawn anew.
"""

import hashlib
from typing import Literal

import numpy as np
from numpy.random import Generator, Philox, SeedSequence

Purpose = Literal["order", "augmentation", "mixing"]

# Who draws. What orders an epoch has no number, as it had none when it was alone.
_PURPOSES: dict[Purpose, tuple[int, ...]] = {"order": (), "augmentation": (1,), "mixing": (2,)}

# Of stages without another one behind them, and of checkpoints from when all stages of a job drew alike.
BY_SEED_ALONE = 0


def descended(lineage: int, stage: str) -> int:
    """The lineage of a stage that starts from the weights of another, whose lineage is given: never 0, below 2^48.

    It is a hash over all names on the way, so no two stages that the same weights have gone through draw alike, even
    where they are of two jobs and have one name.
    """
    digest = hashlib.blake2b(f"{lineage}/{stage}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little") | 1


def sequence(seed: int, epoch: int, purpose: Purpose, lineage: int) -> SeedSequence:
    """What an epoch's numbers for one purpose come from."""
    return SeedSequence([seed, epoch, *_PURPOSES[purpose]], spawn_key=(lineage,) if lineage else ())


class SampleRNG:
    """Generators for the samples of an epoch, or for its pairs to mix; each is there as often as it is asked for."""

    def __init__(self, seed: int, epoch: int, purpose: Purpose, lineage: int = BY_SEED_ALONE) -> None:
        self._key = sequence(seed, epoch, purpose, lineage).generate_state(2, np.uint64)

    def of(self, index: int) -> Generator:
        """The sample's generator, from its beginning: Philox counts in the first word, the sample is the second."""
        return Generator(Philox(key=self._key, counter=np.array([0, index, 0, 0], np.uint64)))
