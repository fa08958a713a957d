"""Mixup and CutMix: mixes neighbouring images of a batch in pairs, and turns their labels into shares of classes.

The order of an epoch is random, so neighbours are a random pair; a rank's batch begins at an even position, so the same
pairs are mixed in the same way on any number of ranks.
Mixup: Zhang et al. 2018, eq. 1. CutMix: Yun et al. 2019, §3.1. Each pair has its own share, drawn from Beta(alpha,
alpha) and mirrored to at least one half: the mixtures are the same two, and an image's own label has the larger share.
"""

import math

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from resnetboost_trainer.data.rng import SampleRNG

Images = NDArray[np.float32]


class Mixing(msgspec.Struct, frozen=True):
    """Mixup and CutMix by their alphas; 0 disables one. With both, each pair uses either with equal probability."""

    mixup: float
    cutmix: float
    classes: int

    def apply(self, images: Images, labels: NDArray[np.int32], rng: SampleRNG, place: int) -> NDArray[np.float32]:
        """Mix (n, c, h, w) in place, n even, and return shares of classes (n, K).

        `place` is the position of the first image in the epoch.
        """
        shares = np.zeros((len(images), self.classes), np.float32)
        for first in range(0, len(images), 2):
            own = self._pair(images[first : first + 2], rng.of((place + first) // 2))
            for sample, other in ((first, first + 1), (first + 1, first)):
                shares[sample, labels[sample]] += own
                shares[sample, labels[other]] += 1 - own
        return shares

    def _pair(self, pair: Images, draw: Generator) -> float:
        """Mix two images; return the share that each keeps of itself."""
        cut = self.cutmix > 0 and (self.mixup == 0 or draw.random() < 0.5)
        alpha = self.cutmix if cut else self.mixup
        own = float(draw.beta(alpha, alpha))
        own = max(own, 1 - own)
        if cut:
            return _cut(pair, own, draw)
        mixed = (own * pair + (1 - own) * pair[::-1]).astype(np.float32)
        pair[...] = mixed
        return own


def _cut(pair: Images, own: float, draw: Generator) -> float:
    """Swap a box of area 1 - `own`, centred at a random pixel and clipped at the border; return the share kept."""
    height, width = pair.shape[2:]
    h, w = int(height * math.sqrt(1 - own)), int(width * math.sqrt(1 - own))
    y, x = int(draw.integers(height)), int(draw.integers(width))
    rows = slice(max(0, y - h // 2), min(height, y + h // 2))
    columns = slice(max(0, x - w // 2), min(width, x + w // 2))
    box = pair[:, :, rows, columns]
    box[...] = box[::-1].copy()
    return 1 - box.shape[2] * box.shape[3] / (height * width)
