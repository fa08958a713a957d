"""Reads CIFAR-10 and CIFAR-100 in their binary layout: records of labels and 3072 bytes of pixels."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data.sources import byte_file, class_names
from resnetboost_trainer.data.sources.label_checks import check_classes, checked
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.data.sources.source import place
from resnetboost_trainer.failures import DataError

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))  # of CIFAR-10
_PIXELS = 3 * 32 * 32
_INNER_10, _INNER_100 = "cifar-10-batches-bin", "cifar-100-binary"
Bytes = NDArray[np.uint8]


def read10(dataset: config.Dataset, num_classes: int) -> Arrays:
    """Read CIFAR-10: a label and the pixels in each record. Images uint8 (n, 32, 32, 3)."""
    check_classes("CIFAR10", 10, num_classes)
    root = _inner(place(dataset), _INNER_10)
    parts = [_records(root / name, labels=1, classes=10) for name in TRAIN_FILES]
    train = [np.concatenate([part[side] for part in parts]) for side in (0, 1)]
    return Arrays(train[0], train[1], *_records(root / "test_batch.bin", labels=1, classes=10))


def read100(dataset: config.Dataset, num_classes: int) -> Arrays:
    """Read CIFAR-100: a coarse label, a fine one, which is used, and the pixels in each record."""
    check_classes("CIFAR100", 100, num_classes)
    root = _inner(place(dataset), _INNER_100)
    files = [_records(root / name, labels=2, classes=100) for name in ("train.bin", "test.bin")]
    return Arrays(*(part for file in files for part in file))


def names10(dataset: config.Dataset) -> tuple[str, ...]:
    """Return the class names of CIFAR-10; none if their file is missing, since training does without."""
    return class_names.read(_inner(place(dataset), _INNER_10) / "batches.meta.txt")


def names100(dataset: config.Dataset) -> tuple[str, ...]:
    """Return the class names of CIFAR-100, like `names10`."""
    return class_names.read(_inner(place(dataset), _INNER_100) / "fine_label_names.txt")


def _inner(root: Path, name: str) -> Path:
    """Return the archive's own folder, if `root` is the folder that it was unpacked in."""
    return root / name if (root / name).is_dir() else root


def _records(path: Path, labels: int, classes: int) -> tuple[Bytes, Bytes]:
    record = labels + _PIXELS
    data = np.frombuffer(byte_file.read(path), np.uint8)
    if not len(data) or len(data) % record:
        raise DataError(f"{path}: {len(data)} bytes are no whole number of records of {record}; fetch the file again")
    table = data.reshape(-1, record)
    images = table[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, checked(path, table[:, labels - 1], classes)
