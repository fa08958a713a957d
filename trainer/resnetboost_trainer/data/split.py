"""Sets a share of each class's training images apart, to test with (`dataset.validationSplit`). Stateless.

Which images are chosen depends on the labels and their order alone: it is the same on every rank, after a restart, in
every job and in later evaluations. Philox's raw numbers, unlike NumPy's permutations, never change with its versions.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from resnetboost_trainer.data.image_dataset import Contents
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.data.sources.source import Files, LabelledFiles
from resnetboost_trainer.data.stream import Selection
from resnetboost_trainer.failures import ConfigError

FIELD = "dataset.validationSplit"
_SEED = 0x5EED

Indices = NDArray[np.int64]


class Chosen(NamedTuple):
    """Indices of the samples to train on and of those set apart, each ascending."""

    train: Indices
    test: Indices


def stratified(labels: NDArray[np.integer[Any]], share: float, names: Sequence[str] = ()) -> Chosen:
    """Choose `share` of each class, rounded to whole images. Raises ConfigError for a class that is too small."""
    by_class = np.argsort(labels, kind="stable")
    classes, firsts = np.unique(labels[by_class], return_index=True)
    kept, apart = [], []
    for label, members in zip(classes, np.split(by_class, firsts[1:]), strict=True):
        count = math.floor(share * len(members) + 0.5)
        if not 0 < count < len(members):
            raise ConfigError(_too_small(int(label), len(members), share, count, names))
        order = np.argsort(Philox(key=[_SEED, int(label)]).random_raw(len(members)), kind="stable")
        apart.append(members[order[:count]])
        kept.append(members[order[count:]])
    return Chosen(np.sort(np.concatenate(kept)), np.sort(np.concatenate(apart)))


def _too_small(label: int, images: int, share: float, count: int, names: Sequence[str]) -> str:
    named = f"class {names[label]}" if label < len(names) else f"class {label}"
    if images == 1:
        return f"{FIELD}: {named} has one image to train on, and a split needs two; add images of it"
    those = f"{share:g} of the {images} images to train on of {named}"
    if count == 0:
        return f"{FIELD}: {those} is none; use {math.ceil(500 / images) / 1000:g} or more, or add images of it"
    return f"{FIELD}: {those} is each of them; use less than {1 - 0.5 / images:g}, or add images of it"


def of_arrays(found: Arrays, share: float, names: Sequence[str]) -> Arrays:
    """Split the training images of arrays; their own test images are dropped."""
    chosen = stratified(found.y_train, share, names)
    images, labels = found.x_train, found.y_train
    return Arrays(images[chosen.train], labels[chosen.train], images[chosen.test], labels[chosen.test])


def of_files(found: Files, share: float) -> Files:
    """Split the training images of files, which come twice: as those to train on and as those to test with."""
    chosen = stratified(found.train.labels, share, found.classes)
    return Files(Subset(found.train, chosen.train), Subset(found.test, chosen.test), found.classes)


class Subset(Contents):
    """Some of the files of `whole`, by their indices there."""

    def __init__(self, whole: LabelledFiles, indices: Indices) -> None:
        self._whole, self._indices = whole, indices
        self._labels: NDArray[np.int32] = whole.labels[indices]

    @property
    def labels(self) -> NDArray[np.int32]:
        return self._labels

    @property
    def stream(self) -> Selection | None:
        whole = self._whole.stream
        assert not isinstance(whole, Selection), "a part of a part"
        return None if whole is None else Selection(whole, self._indices)

    def name(self, index: int) -> str:
        return self._whole.name(int(self._indices[index]))

    def read(self, index: int) -> bytes:
        return self._whole.read(int(self._indices[index]))

    def digest(self) -> str:
        """Hash the whole's digest and the choice."""
        return hashlib.blake2b(self._whole.digest().encode() + self._indices.tobytes(), digest_size=8).hexdigest()
