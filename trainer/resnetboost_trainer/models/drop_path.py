"""Stochastic depth (Huang et al. 2016, "Deep Networks with Stochastic Depth"): branches left out at random in training.

The branch of block l of L is left out of an image with probability rate l / (L - 1), l from 0: timm's linear rule, by
which the first block always stays. A branch that stays is divided by the probability to stay, so that the network needs
no change in evaluation. What is left out depends on seed, stage, step, virtual rank and micro batch alone, so a resumed
run has the same bits, and so has one on another number of devices.
"""

import zlib
from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn
from numpy.random import Generator, Philox, SeedSequence
from numpy.typing import NDArray

from resnetboost_trainer.models.assign import write
from resnetboost_trainer.models.resnet import BasicBlock, Bottleneck

Floats = NDArray[np.float32]


def rates(rate: float, blocks: int) -> Floats:
    """Return the probability of each block's branch to be left out, (blocks,)."""
    return np.linspace(0, rate, blocks, dtype=np.float32) if blocks > 1 else np.zeros(blocks, np.float32)


def factors(left_out: Floats, batch: int, key: Sequence[int]) -> Floats:
    """Return what each block's branch is multiplied by for each image, (blocks, batch): 0, or 1 / (1 - rate).

    `key` are whole numbers from 0 that the draw depends on.
    """
    draws = Generator(Philox(SeedSequence(list(key)))).random((len(left_out), batch), np.float32)
    stays = (1 - left_out)[:, None]
    return np.where(draws < stays, 1 / stays, np.float32(0)).astype(np.float32)


class DropPath:
    """Draws factors for a network's branches, and writes them to where its blocks read them."""

    def __init__(self, network: nn.Cell, rate: float, batch: int, seed: int, stage: str) -> None:
        """Make the network's blocks multiply their branches in training; call it before compiling.

        `batch` is the number of images of each forward pass in training mode.
        """
        blocks = [cell for _, cell in network.cells_and_names() if isinstance(cell, BasicBlock | Bottleneck)]
        self._rates, self._batch = rates(rate, len(blocks)), batch
        self._key = seed, zlib.crc32(stage.encode())
        ones = Tensor(np.ones((len(blocks), batch)), mindspore.float32)
        self.factors = Parameter(ones, name="drop_path.factors", requires_grad=False)
        for place, block in enumerate(blocks):
            block.drop(self.factors, place)
        network.train_by_layer()

    def draw(self, step: int, rank: int, micro_batch: int) -> None:
        """Draw the factors of a micro batch of a virtual rank, by its number in its step."""
        write(self.factors, factors(self._rates, self._batch, (*self._key, step, rank, micro_batch)))
