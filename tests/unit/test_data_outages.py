"""A data set that cannot be read at start: a storage outage restarts the gang, a wrong path fails the job."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from resnetboost_trainer import config
from resnetboost_trainer.cli import to_mindrecord
from resnetboost_trainer.data import read_errors, registry
from resnetboost_trainer.failures import DataError, OutOfMemoryError, StorageError, TrainingError
from support import openfiles, photographs

Name = Literal["npz", "MNIST", "CIFAR10", "ImageFolder", "MindRecord"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN])
def test_errors_of_a_lost_network_storage_are_outages(number: int) -> None:
    failure = read_errors.failure("/data/train: cannot be read", OSError(number, os.strerror(number)))
    assert isinstance(failure, StorageError)
    assert str(failure).startswith(f"/data/train: cannot be read: {os.strerror(number)}; repair the storage")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EISDIR, errno.ENAMETOOLONG])
def test_errors_of_the_path_itself_fail_the_job(number: int) -> None:
    assert isinstance(read_errors.failure("/data", OSError(number, os.strerror(number))), DataError)


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.EMFILE, DataError, "raise the limit of open files"),
        (errno.ENFILE, StorageError, "the whole node has too many open"),
        (errno.ENOMEM, OutOfMemoryError, "give the pod more memory"),
    ],
)
def test_a_lack_of_system_resources_is_no_outage(number: int, kind: type[TrainingError], remedy: str) -> None:
    failure = read_errors.failure("/data: cannot be read", OSError(number, os.strerror(number)))
    assert type(failure) is kind
    assert str(failure).startswith(f"/data: cannot be read: {os.strerror(number)}; {remedy}")


def test_an_error_in_a_files_content_is_no_outage() -> None:
    assert not read_errors.is_outage(OSError("the row is damaged"))
    assert not read_errors.is_outage(ValueError("EIO"))


def load(name: Name, path: Path) -> registry.Dataset:
    return registry.load(config.Dataset(name=name, path=str(path)), 2 if name == "ImageFolder" else 10)


def npz(root: Path) -> None:
    images, labels = np.zeros((2, 8, 8), np.uint8), np.zeros(2, np.int64)
    np.savez(root / "data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)


MAKERS: dict[Name, Callable[[Path], object]] = {
    "npz": npz,
    "MNIST": photographs.mnist,
    "CIFAR10": photographs.cifar,
    "ImageFolder": photographs.folder,
    "MindRecord": lambda root: root.touch(),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_open_files_limit_is_named_and_is_no_outage(name: Name, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    path = tmp_path / "data.npz" if name == "npz" else tmp_path
    with openfiles.at_most(0), pytest.raises(DataError, match=f"{tmp_path}.*: Too many open files; raise the limit"):
        load(name, path)


@pytest.mark.parametrize(
    ("name", "file"),
    [("MNIST", "train-labels-idx1-ubyte"), ("CIFAR10", "data_batch_2.bin"), ("MindRecord", "train0.mindrecord")],
)
def test_an_unreadable_file_is_an_outage(name: Name, file: str, tmp_path: Path) -> None:
    """/proc/self/mem can be opened, and reading its first byte fails with an input/output error."""
    MAKERS[name](tmp_path)
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).symlink_to("/proc/self/mem")
    with pytest.raises(StorageError, match=f"{tmp_path / file}: cannot be read: Input/output error; repair"):
        load(name, tmp_path)


def test_unreadable_class_names_are_an_outage(tmp_path: Path) -> None:
    """Class names are stored in every checkpoint, and would be missing there for good."""
    photographs.cifar(tmp_path)
    names = tmp_path / "batches.meta.txt"
    names.symlink_to("/proc/self/mem")
    with pytest.raises(StorageError, match=f"{names}: cannot be read: Input/output error; repair"):
        load("CIFAR10", tmp_path)


def test_an_outage_does_not_skip_an_image_of_a_mindrecord(tmp_path: Path) -> None:
    source = photographs.folder(tmp_path / "images", train=2, test=2, width=8, height=8)
    image = next((source / "train").glob("*/*.jpg"))
    image.unlink()
    image.symlink_to("/proc/self/mem")
    with pytest.raises(StorageError, match=f"{image}: cannot be read: Input/output error"):
        to_mindrecord.convert(source, tmp_path / "made", "train", "val", shards=1, skip=9)
    assert not (tmp_path / "made").exists()
