"""Which samples there are, and which of them a rank sees at a step; it must not remember earlier steps."""

import functools
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data import preprocessing, read_errors, recipe
from resnetboost_trainer.data.dataset import ArraySplit, Channels, Split
from resnetboost_trainer.data.image_dataset import PhotoSplit
from resnetboost_trainer.data.loader import Wanted
from resnetboost_trainer.data.mixup import Mixing
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.data.recipe import Recipe
from resnetboost_trainer.data.rng import BY_SEED_ALONE, Draws, Purpose, sequence
from resnetboost_trainer.data.sources import imagefolder, labelled, mindrecord, npz
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.failures import ConfigError, DataError

DIGITS_CLASSES = 10
# The test set is the same for every job, so the seed of its choice is nobody's to set.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_ONE_IN = 5

SYNTHETIC_SEED = 0

_WHITE = 255.0  # of a byte
_CHUNK = 1024  # samples worked on at a time, so that temporary arrays stay small


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """Images to train on and to test with, float32 (channels, h, w) each, and int32 labels below `classes`.

    Over training images in memory each channel has mean 0 and standard deviation 1, before they are augmented.
    `fingerprint` tells apart data sets that a checkpoint must not be carried between; `preparation` says how a picture
    becomes like them. `workers` threads make batches, by default one for each core, or with `autotune` as many
    of them as are needed; a rank puts up with `max_corrupt_images`.
    """

    train: Split
    test: Split
    classes: int
    channels: int
    fingerprint: str
    preparation: Preparation | None = None
    mixing: Mixing | None = None
    workers: int | None = None
    autotune: bool = False
    max_corrupt_images: int = 0

    @property
    def x_train(self) -> NDArray[np.float32]:
        """All images (n, c, h, w), of a data set that has them in memory as they are used."""
        return _in_memory(self.train)

    @property
    def y_train(self) -> NDArray[np.int32]:
        return self.train.labels

    @property
    def x_test(self) -> NDArray[np.float32]:
        """As `x_train`."""
        return _in_memory(self.test)

    @property
    def y_test(self) -> NDArray[np.int32]:
        return self.test.labels


def _in_memory(split: Split) -> NDArray[np.float32]:
    assert isinstance(split, ArraySplit) and split.channels is None
    return split.pixels


_READERS: dict[str, Callable[[Path, int], Arrays]] = {
    "MNIST": labelled.mnist,
    "CIFAR10": labelled.cifar10,
    "CIFAR100": labelled.cifar100,
}
_NEEDS = {
    "npz": "the path of a file",
    "MNIST": "the folder of its idx files",
    "CIFAR10": "the folder of its .bin files",
    "CIFAR100": "the folder of its .bin files",
    "ImageFolder": "the folder that has train and val",
    "MindRecord": "the folder of the files",
}
_Files = imagefolder.FolderContents | mindrecord.MindRecordContents


class EvaluationBatch(NamedTuple):
    """Test samples to look up (batch,) and 1 for those that count, 0 for padding (batch,)."""

    indices: NDArray[np.int64]
    mask: NDArray[np.float32]


def load(dataset: config.Dataset, classes: int, known: Preparation | None = None) -> Dataset:
    """Read the job's data set. Raises ConfigError or DataError: one sentence saying what would be right; StorageError.

    With `known` arrays are normalised as a network wants them that was trained on others, else by their own.
    """
    try:
        return _load(dataset, classes, known)
    except OSError as error:
        raise read_errors.failure(f"{error.filename or dataset.path}: cannot be read", error) from None


def _load(dataset: config.Dataset, classes: int, known: Preparation | None) -> Dataset:
    chosen = recipe.recipe(dataset, classes)
    if dataset.name == "digits":
        return _normalised(dataset, _digits(classes), "digits", chosen, classes, known)
    if dataset.name == "mnist_5k":
        return _pixels(dataset, labelled.mnist_5k(classes), chosen, classes, known)
    if dataset.name == "Synthetic":
        return _pixels(dataset, labelled.synthetic(chosen.size, classes, SYNTHETIC_SEED), chosen, classes, known)
    if dataset.path is None:
        raise ConfigError(f"dataset.path: missing; dataset.name: {dataset.name} needs {_NEEDS[dataset.name]}")
    path = Path(dataset.path)
    if dataset.name == "npz":
        return _normalised(dataset, npz.read(path, classes), dataset.path, chosen, classes, known)
    if dataset.name in _READERS:
        return _pixels(dataset, _READERS[dataset.name](path, classes), chosen, classes, known)
    train, test = _photos(dataset, path, classes)
    names = train.classes if isinstance(train, imagefolder.FolderContents) else mindrecord.classes(path)
    return Dataset(
        train=PhotoSplit(train, chosen.augmented, chosen.size),
        test=PhotoSplit(test, chosen.evaluated, chosen.size),
        classes=classes,
        channels=3,
        fingerprint=f"{dataset.name}:{train.digest()}:{test.digest()}",
        preparation=preprocessing.of_photographs(chosen.evaluated, names[:classes]),
        mixing=chosen.mixing,
        workers=dataset.workers,
        autotune=dataset.autotune,
        max_corrupt_images=dataset.max_corrupt_images or 0,
    )


def _photos(dataset: config.Dataset, path: Path, classes: int) -> tuple[_Files, _Files]:
    if dataset.name == "MindRecord":
        return mindrecord.contents(path, classes)
    return imagefolder.contents(path, dataset.train_folder or "train", dataset.test_folder or "val", classes)


def _normalised(
    dataset: config.Dataset, arrays: Arrays, source: str, chosen: Recipe, classes: int, known: Preparation | None
) -> Dataset:
    """Arrays of any type and scale, kept as they are used: normalised."""
    x_train, x_test = _as_nchw(arrays.x_train), _as_nchw(arrays.x_test)
    for name, images in (("x_train", x_train), ("x_test", x_test)):
        _check_finite(source, name, images)
    white = _brightest(x_train)
    channels = _channels(x_train, white, known)
    blank = _normalise(x_train, x_test, channels)
    train = ArraySplit(x_train, arrays.y_train.astype(np.int32), None, blank, chosen.arrays)
    test = ArraySplit(x_test, arrays.y_test.astype(np.int32))
    prepared = preprocessing.of_arrays(x_train.shape[2:], channels, white, labelled.class_names(dataset, classes))
    return _of_arrays(dataset, arrays, train, test, chosen, prepared, classes)


def _pixels(
    dataset: config.Dataset, arrays: Arrays, chosen: Recipe, classes: int, known: Preparation | None
) -> Dataset:
    """Arrays of bytes, kept as such, a quarter of the memory, and normalised when they are used."""
    x_train, x_test = (
        np.ascontiguousarray(x.reshape(*x.shape[:3], -1).transpose(0, 3, 1, 2)) for x in (arrays[0], arrays[2])
    )
    channels = _channels(x_train, _WHITE, known)
    train = ArraySplit(x_train, arrays.y_train.astype(np.int32), channels, None, chosen.arrays)
    test = ArraySplit(x_test, arrays.y_test.astype(np.int32), channels)
    prepared = preprocessing.of_arrays(x_train.shape[2:], channels, _WHITE, labelled.class_names(dataset, classes))
    return _of_arrays(dataset, arrays, train, test, chosen, prepared, classes)


def _of_arrays(
    dataset: config.Dataset,
    arrays: Arrays,
    train: ArraySplit,
    test: ArraySplit,
    chosen: Recipe,
    prepared: Preparation,
    classes: int,
) -> Dataset:
    return Dataset(
        train=train,
        test=test,
        classes=classes,
        channels=train.shape[0],
        fingerprint=f"{dataset.name}:{_digest(arrays)}",
        preparation=prepared,
        mixing=chosen.mixing,
        workers=dataset.workers,
        autotune=dataset.autotune,
    )


def _digits(classes: int) -> npz.Arrays:
    """scikit-learn's 1797 handwritten digits, 8x8, values 0 to 16: 1437 to train and 360 to test."""
    labelled.check_classes("digits", DIGITS_CLASSES, classes)
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("digits: scikit-learn is not installed, and the digits are its data; install scikit-learn")
    # sklearn.datasets.load_digits reads this very file, but importing it takes 2.5 seconds on every rank.
    file = Path(spec.submodule_search_locations[0]) / "datasets/data/digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    test = _stratified(labels, DIGITS_TEST_ONE_IN, DIGITS_SPLIT_SEED)
    return npz.Arrays(images[~test], labels[~test], images[test], labels[test])


def _stratified(labels: NDArray[np.uint8], one_in: int, seed: int) -> NDArray[np.bool_]:
    """Mask (n,) of one in so many samples, drawn at random and from every class alike."""
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.zeros(len(labels), np.bool_)
    chosen[by_class[::one_in]] = True
    return chosen


def _digest(arrays: npz.Arrays) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def _as_nchw(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """(n, h, w) or (n, h, w, c) of any type -> float32 (n, c, h, w)."""
    with np.errstate(over="ignore"):  # what becomes infinite is refused by _check_finite
        if images.ndim == 3:
            return images[:, np.newaxis].astype(np.float32, order="C")
        return images.transpose(0, 3, 1, 2).astype(np.float32, order="C")


def _check_finite(source: str, name: str, images: NDArray[np.float32]) -> None:
    for start in range(0, len(images), _CHUNK):
        finite = np.isfinite(images[start : start + _CHUNK]).all(axis=(1, 2, 3))
        if not finite.all():
            sample = start + int(np.argmin(finite))
            raise DataError(f"{source}: {name}: sample {sample} holds a value that is not finite as float32")


def _normalise(x_train: NDArray[np.float32], x_test: NDArray[np.float32], channels: Channels) -> NDArray[np.float32]:
    """In place: subtract each channel's mean, divide by its deviation. Returns what a zero becomes, by channel (c,)."""
    for channel, (mean, deviation) in enumerate(zip(*channels, strict=True)):
        for images in (x_train, x_test):
            images[:, channel] -= mean
            images[:, channel] /= deviation
    blank: NDArray[np.float32] = -channels.mean / channels.deviation
    return blank


def _channels(images: NDArray[np.float32] | NDArray[np.uint8], white: float, known: Preparation | None) -> Channels:
    """Mean and standard deviation of each channel; or the known ones, for as many, in units of these images' white."""
    if known is not None and known.resize is None and len(known.mean) == images.shape[1]:
        scale = np.float32(white / known.white)
        return Channels(known.channels.mean * scale, known.channels.deviation * scale)
    moments = np.array([_moments(images[:, channel]) for channel in range(images.shape[1])], np.float32)
    return Channels(moments[:, 0], moments[:, 1])


def _brightest(images: NDArray[np.float32]) -> float:
    """The largest value, which is taken for a white pixel's; 1 where none is above 0."""
    largest = float(images.max())
    return largest if largest > 0 else 1.0


def _moments(values: NDArray[np.float32] | NDArray[np.uint8]) -> tuple[float, float]:
    """Mean and standard deviation over everything; the deviation of a constant is given as 1."""
    chunks = [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
    mean = sum(float(chunk.sum(dtype=np.float64)) for chunk in chunks) / values.size
    squares = sum(float(np.square(np.subtract(chunk, mean, dtype=np.float64)).sum()) for chunk in chunks)
    deviation = float(np.sqrt(squares / values.size))
    return mean, deviation if deviation > 1e-6 * abs(mean) else 1.0


def check_same(fingerprint: str, gather: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> None:
    """Raises DataError, on every rank, where ranks have other data sets than rank 0. A collective."""
    digest = hashlib.blake2b(fingerprint.encode(errors="surrogateescape"), digest_size=8).digest()
    every = gather(np.frombuffer(digest, np.uint8).astype(np.float32))  # bytes are exact, and no device's NaN
    others = np.flatnonzero((every != every[0]).any(axis=1))
    if others.size:
        told = ", ".join(map(str, others[:8]))
        raise DataError(
            f"dataset.path: the ranks see different data, rank {told} other than rank 0;"
            " every node needs the same files"
        )


def advice(dataset: Dataset) -> str | None:
    """What to say of a data set that has fewer classes than the network tells apart."""
    labels = 1 + int(max(dataset.train.labels.max(), dataset.test.labels.max()))
    if labels >= dataset.classes:
        return None
    problem = f"model.numClasses: {dataset.classes} classes, and the highest label of the data set is {labels - 1}"
    return f"{problem}: the others are never learnt; use {labels}, or more only to go on with other data"


def check_batch(
    samples: int, world_size: int, local_batch_size: int, mixing: bool = False, accumulation_steps: int = 1
) -> None:
    """Raises ConfigError when the training set does not fill a single global batch, or pairs cannot be mixed."""
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


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, n: int, lineage: int = BY_SEED_ALONE) -> NDArray[np.int64]:
    """Permutation of the n training samples in an epoch (n,); it depends on nothing else."""
    generator = np.random.Generator(np.random.Philox(sequence(seed, epoch, "order", lineage)))
    permutation = generator.permutation(n)
    permutation.flags.writeable = False  # it is cached
    return permutation


def batch_indices(
    seed: int, epoch: int, batch: int, global_batch: int, rank: int, world_size: int, n: int
) -> NDArray[np.int64]:
    """A rank's part (global_batch / world_size,) of a global batch, which is the same on any gang.

    An epoch has n // global_batch batches; its remainder is dropped, another one in every epoch.
    """
    local = global_batch // world_size
    start = batch * global_batch + rank * local
    return order(seed, epoch, n)[start : start + local]


class Share(NamedTuple):
    """What a rank is given of every global batch, and how many of them an epoch of `n` samples has.

    It comes in `parts` of equal size, one after another, which together are what it would be as one. `lineage` is
    of the stage: datasets.draws.
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

    def steps(self, first: int, total: int) -> Iterator[Wanted]:
        """The parts of the steps from `first` on: functions of seed, lineage and position, whatever was before."""
        local = self.global_batch // self.world_size
        size = local // self.parts
        for step in range(first, total):
            epoch, batch = divmod(step, self.per_epoch)
            start, own = batch * self.global_batch, self.rank * local
            whole = order(self.seed, epoch, self.n, self.lineage)[start : start + self.global_batch]
            augmentation = _draws(self.seed, epoch, "augmentation", self.lineage)
            mixing = _draws(self.seed, epoch, "mixing", self.lineage)
            for part in range(own, own + local, size):
                yield Wanted(whole, part, size, augmentation, (mixing, start + part))


@functools.lru_cache(maxsize=4)
def _draws(seed: int, epoch: int, purpose: Purpose, lineage: int) -> Draws:
    return Draws(seed, epoch, purpose, lineage)


def evaluation_slices(n: int, world_size: int, rank: int, batch: int) -> list[EvaluationBatch]:
    """A rank's batches of the n test samples: equally many on every rank, padded to one size.

    Over all ranks, every sample counts exactly once.
    """
    stride = world_size * batch
    rounds = -(-n // stride)
    starts = range(rank * batch, rounds * stride, stride)
    return [_evaluation_batch(np.arange(start, start + batch), n) for start in starts]


def _evaluation_batch(indices: NDArray[np.int64], n: int) -> EvaluationBatch:
    return EvaluationBatch(np.minimum(indices, n - 1), (indices < n).astype(np.float32))
