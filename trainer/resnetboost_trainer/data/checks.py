"""Checks of a loaded data set: against the network, the batches and the other ranks."""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.failures import ConfigError, DataError


def check_same(fingerprint: str, gather: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> None:
    """Raise DataError on every rank if any rank's data set differs from rank 0's. A collective."""
    digest = hashlib.blake2b(fingerprint.encode(errors="surrogateescape"), digest_size=8).digest()
    every = gather(np.frombuffer(digest, np.uint8).astype(np.float32))  # bytes are exact, and no device's NaN
    others = np.flatnonzero((every != every[0]).any(axis=1))
    if others.size:
        ranks = ", ".join(map(str, others[:8]))
        raise DataError(
            f"dataset.path: the ranks see different data, rank {ranks} other than rank 0;"
            " every node needs the same files"
        )


def advice(dataset: Dataset) -> str | None:
    """Return a warning if the data set has fewer classes than the network."""
    labels = 1 + int(max(dataset.train.labels.max(), dataset.test.labels.max()))
    if labels >= dataset.classes:
        return None
    problem = f"model.numClasses: {dataset.classes} classes, and the highest label of the data set is {labels - 1}"
    return f"{problem}: the others are never learnt; use {labels}, or more only to continue with other data"


def check_batch(
    samples: int, world_size: int, local_batch_size: int, mixing: bool = False, accumulation_steps: int = 1
) -> None:
    """Raise ConfigError if the training set does not fill a global batch, or the local batch is odd with `mixing`."""
    if mixing and local_batch_size % 2:
        raise ConfigError(f"localBatchSize: {local_batch_size} is odd, and mixup and cutmix mix pairs; use an even one")
    if world_size > samples:
        raise ConfigError(
            f"device.count: {world_size} is more ranks than there are training samples; use at most {samples}"
        )
    if world_size * accumulation_steps > samples:
        raise ConfigError(
            f"accumulationSteps: {accumulation_steps} on each of {world_size} ranks are more micro batches than there"
            f" are training samples; use at most {samples // world_size}"
        )
    global_batch = world_size * local_batch_size * accumulation_steps
    if global_batch > samples:
        times = f" and accumulationSteps: {accumulation_steps}" if accumulation_steps > 1 else ""
        most = samples // (world_size * accumulation_steps)
        raise ConfigError(
            f"localBatchSize: {local_batch_size} on each of {world_size} ranks{times} is a global batch of"
            f" {global_batch}, more than the {samples} training samples; use at most {most}"
        )
