"""Which samples there are, and which of them a rank sees at a step; it must not remember earlier steps."""

import functools
import hashlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config, npz
from resnetboost_trainer.verdict import ConfigError, DataError

DIGITS_CLASSES = 10
# The test set is the same for every job, so the seed of its choice is nobody's to set.
DIGITS_SPLIT_SEED = 0
DIGITS_TEST_ONE_IN = 5

_CHUNK = 1024  # samples worked on at a time, so that temporary arrays stay small


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """Images float32 (n, channels, h, w), labels int32 (n,) below `classes`.

    Over the training images, each channel has mean 0 and standard deviation 1.
    `fingerprint` tells apart data sets that a checkpoint must not be carried between.
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int32]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int32]
    classes: int
    channels: int
    fingerprint: str


class EvaluationBatch(NamedTuple):
    """Test samples to look up (batch,) and 1 for those that count, 0 for padding (batch,)."""

    indices: NDArray[np.int64]
    mask: NDArray[np.float32]


def load(dataset: config.Dataset, classes: int) -> Dataset:
    """Read the job's data set. Raises ConfigError or DataError: one sentence saying what would be right."""
    if dataset.name == "digits":
        source, arrays = "digits", _digits(classes)
    elif dataset.path is None:
        raise ConfigError("dataset.path: missing; dataset.name: npz needs the path of a file")
    else:
        source, arrays = dataset.path, npz.read(Path(dataset.path), classes)
    x_train, x_test = _as_nchw(arrays.x_train), _as_nchw(arrays.x_test)
    for name, images in (("x_train", x_train), ("x_test", x_test)):
        _check_finite(source, name, images)
    _normalise(x_train, x_test)
    return Dataset(
        x_train=x_train,
        y_train=arrays.y_train.astype(np.int32),
        x_test=x_test,
        y_test=arrays.y_test.astype(np.int32),
        classes=classes,
        channels=x_train.shape[1],
        fingerprint=f"{dataset.name}:{_digest(arrays)}",
    )


def _digits(classes: int) -> npz.Arrays:
    """scikit-learn's 1797 handwritten digits, 8x8, values 0 to 16: 1437 to train and 360 to test."""
    if classes < DIGITS_CLASSES:
        raise ConfigError(f"model.numClasses: {classes} is too few for digits; use at least {DIGITS_CLASSES}")
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


def _normalise(x_train: NDArray[np.float32], x_test: NDArray[np.float32]) -> None:
    """In place: subtract the training set's mean of each channel, divide by its standard deviation."""
    for channel in range(x_train.shape[1]):
        mean, deviation = _moments(x_train[:, channel])
        for images in (x_train, x_test):
            images[:, channel] -= np.float32(mean)
            images[:, channel] /= np.float32(deviation)


def _moments(values: NDArray[np.float32]) -> tuple[float, float]:
    """Mean and standard deviation over everything; the deviation of a constant is given as 1."""
    chunks = [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
    mean = sum(float(chunk.sum(dtype=np.float64)) for chunk in chunks) / values.size
    squares = sum(float(np.square(np.subtract(chunk, mean, dtype=np.float64)).sum()) for chunk in chunks)
    deviation = float(np.sqrt(squares / values.size))
    return mean, deviation if deviation > 1e-6 * abs(mean) else 1.0


def check_batch(samples: int, world_size: int, local_batch_size: int) -> None:
    """Raises ConfigError when the training set does not fill a single global batch."""
    if world_size > samples:
        raise ConfigError(
            f"device.count: {world_size} is more ranks than there are training samples; use at most {samples}"
        )
    global_batch = world_size * local_batch_size
    if global_batch > samples:
        raise ConfigError(
            f"localBatchSize: {local_batch_size} on each of {world_size} ranks is a global batch of"
            f" {global_batch}, more than the {samples} training samples; use at most {samples // world_size}"
        )


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """Permutation of the n training samples in an epoch (n,); it depends on nothing else."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
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
