"""Random numbers of an epoch: a function of seed, epoch and sample, so that a resumed run needs no state of them."""

from typing import Literal

import numpy as np
from numpy.random import Generator, Philox, SeedSequence

Purpose = Literal["augmentation", "mixing"]

# Who draws; the order of an epoch has SeedSequence([seed, epoch]) for itself.
_PURPOSES: dict[Purpose, int] = {"augmentation": 1, "mixing": 2}


class Draws:
    """Generators for the samples of an epoch, or for its pairs to mix; each is there as often as it is asked for."""

    def __init__(self, seed: int, epoch: int, purpose: Purpose) -> None:
        self._key = SeedSequence([seed, epoch, _PURPOSES[purpose]]).generate_state(2, np.uint64)

    def of(self, index: int) -> Generator:
        """The sample's generator, from its beginning: Philox counts in the first word, the sample is the second."""
        return Generator(Philox(key=self._key, counter=np.array([0, index, 0, 0], np.uint64)))
