"""Selects the samples of each rank, for training steps and for evaluation. Stateless."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data.loader import BatchRequest
from resnetboost_trainer.data.rng import BY_SEED_ALONE, Purpose, SampleRNG, sequence


class EvaluationBatch(NamedTuple):
    """Indices of test samples (batch,), and a mask (batch,) of 1, or 0 for padding."""

    indices: NDArray[np.int64]
    mask: NDArray[np.float32]


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, n: int, lineage: int = BY_SEED_ALONE) -> NDArray[np.int64]:
    """Return the permutation of the n training samples in an epoch (n,); it depends on the arguments alone."""
    generator = np.random.Generator(np.random.Philox(sequence(seed, epoch, "order", lineage)))
    permutation = generator.permutation(n)
    permutation.flags.writeable = False  # it is cached
    return permutation


def batch_indices(
    seed: int, epoch: int, batch: int, global_batch: int, rank: int, world_size: int, n: int
) -> NDArray[np.int64]:
    """Return a rank's part (global_batch / world_size,) of a global batch, which is the same on any gang.

    An epoch has n // global_batch batches; its remainder is dropped, another one in every epoch.
    """
    local = global_batch // world_size
    start = batch * global_batch + rank * local
    return order(seed, epoch, n)[start : start + local]


class DistributedSampler(NamedTuple):
    """Selects the samples of a rank in every global batch; an epoch of `n` samples has `per_epoch` batches.

    A rank's samples come in `parts` of equal size, one after another. `lineage` is the stage's: data/rng.py.
    """

    seed: int
    global_batch: int
    rank: int
    world_size: int
    n: int
    parts: int = 1
    lineage: int = BY_SEED_ALONE

    @property
    def per_epoch(self) -> int:
        return self.n // self.global_batch

    def steps(self, first: int, total: int) -> Iterator[BatchRequest]:
        """Yield the parts of the steps from `first` on: functions of seed, lineage and position alone."""
        local = self.global_batch // self.world_size
        size = local // self.parts
        for step in range(first, total):
            epoch, batch = divmod(step, self.per_epoch)
            start, own = batch * self.global_batch, self.rank * local
            whole = order(self.seed, epoch, self.n, self.lineage)[start : start + self.global_batch]
            augmentation = _rng(self.seed, epoch, "augmentation", self.lineage)
            mixing = _rng(self.seed, epoch, "mixing", self.lineage)
            for part in range(own, own + local, size):
                yield BatchRequest(whole, part, size, augmentation, (mixing, start + part))


@functools.lru_cache(maxsize=4)
def _rng(seed: int, epoch: int, purpose: Purpose, lineage: int) -> SampleRNG:
    return SampleRNG(seed, epoch, purpose, lineage)


def evaluation_slices(n: int, world_size: int, rank: int, batch: int) -> list[EvaluationBatch]:
    """Return a rank's batches of the n test samples: equally many on every rank, padded to one size.

    Over all ranks, every sample counts exactly once.
    """
    stride = world_size * batch
    rounds = -(-n // stride)
    starts = range(rank * batch, rounds * stride, stride)
    return [_evaluation_batch(np.arange(start, start + batch), n) for start in starts]


def _evaluation_batch(indices: NDArray[np.int64], n: int) -> EvaluationBatch:
    return EvaluationBatch(np.minimum(indices, n - 1), (indices < n).astype(np.float32))
