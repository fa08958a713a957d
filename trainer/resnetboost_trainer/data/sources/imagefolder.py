"""Reads image folders in ImageNet's layout: a training and a test folder, each with one folder per class."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data import read_errors
from resnetboost_trainer.data.sources.source import Files, place
from resnetboost_trainer.failures import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_SAMPLED_SIZES = 1024  # number of files whose size is part of the fingerprint
_MOST_BYTES = 256 << 20  # of a file; an image within the decoder's limits is smaller


class Names:
    """The names and classes of the images below a folder that has one folder per class, wherever it is.

    Names are stored as one string and their ends: a million string objects would take a hundred megabytes.
    """

    def __init__(self, root: str, classes: Sequence[str], images: Iterable[Sequence[bytes]]) -> None:
        """`images` are those of each class, sorted. Raises DataError for a class without images."""
        self._root, self.classes = root, tuple(classes)
        names: list[bytes] = []
        counts = []
        for name, found in zip(self.classes, images, strict=True):
            names += found
            counts.append(len(found))
            if not found:
                problem = f"no image in it; each class needs one at least ({', '.join(SUFFIXES)})"
                raise DataError(f"{os.path.join(root, name)}: {problem}")
        self.labels: NDArray[np.int32] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self._names = b"".join(names)
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def name(self, index: int) -> str:
        """Return the place of an image, with its folder."""
        start = int(self._ends[index - 1]) if index else 0
        name = os.fsdecode(self._names[start : int(self._ends[index])])
        return os.path.join(self._root, self.classes[self.labels[index]], name)

    def digest_with(self, size: Callable[[int], int]) -> str:
        """Hash all names and the sizes of up to 1024 files spread over them, but no content."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update("\0".join(self.classes).encode(errors="surrogateescape"))
        for part in (self.labels, self._ends):
            digest.update(part.tobytes())
        digest.update(self._names)
        sampled = np.unique(np.linspace(0, len(self.labels) - 1, _SAMPLED_SIZES).astype(np.int64))
        digest.update(np.array([size(int(index)) for index in sampled]).tobytes())
        return digest.hexdigest()


class FolderContents(Names):
    """The images below a folder of this machine."""

    stream = None

    def __init__(self, root: Path, classes: Sequence[str]) -> None:
        """List the images. Raises DataError for a class without images."""
        super().__init__(os.fspath(root), classes, (sorted(_images(root / name)) for name in classes))
        self.root = root

    def read(self, index: int) -> bytes:
        """Return a file's content. Raises OSError, without `errno` if it is not a regular file or too large."""
        with open(self.name(index), "rb", buffering=0, opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a regular file")
            check_size(status.st_size)
            return file.read()

    def digest(self) -> str:
        return self.digest_with(lambda index: _size(self.name(index)))


def classes(root: Path, name: str, role: str) -> list[str]:
    """Return the names of the class folders in a folder of `root`, sorted: a name's index is its label.

    Raises DataError with the expected layout and the folder's content, or StorageError.
    """
    place = root / name
    try:
        with os.scandir(place) as entries:
            found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        if not found:
            problem = f"no folders in it; the images to {role} need a folder for each class"
            raise DataError(f"{place}: {problem}, {name}/CLASS/NAME.jpg, and there is {read_errors.listed(place)}")
        return found
    except OSError as error:
        failure = read_errors.failure(f"{place}: the folder of images to {role} cannot be read", error)
        if error.errno == errno.ENOENT and root.is_dir():
            raise DataError(f"{failure}; {_layout(root)}") from None
        if error.errno == errno.ENOENT and root.parent.is_dir():
            there = f"{root.parent} holds {read_errors.listed(root.parent)}"
            raise DataError(f"dataset.path: there is no folder {root}; {there}") from None
        raise failure from None


def _layout(root: Path) -> str:
    expected = "lay images out as train/CLASS/NAME.jpg and val/CLASS/NAME.jpg"
    other = "dataset.trainFolder and dataset.testFolder name other folders"
    return f"{expected} in {root}, which holds {read_errors.listed(root)} ({other})"


def read(dataset: config.Dataset, num_classes: int) -> Files:
    """Find the images below `trainFolder` and `testFolder` of the data set's path. Raises DataError.

    With `validationSplit` the second is not looked at, and the first comes twice.
    """
    folder = dataset.train_folder or "train"
    tested = folder if dataset.validation_split is not None else dataset.test_folder or "val"
    train, test = contents(place(dataset), folder, tested, num_classes)
    return Files(train, test, train.classes)


def contents(root: Path, train: str, test: str, num_classes: int) -> tuple[FolderContents, FolderContents]:
    """Return training and test images. Raises DataError if their classes differ or are not `num_classes`."""
    names = classes(root, train, "train on")
    others = names if train == test else None
    check(f"{root / train}", f"{root / test}", names, num_classes, lambda: others or classes(root, test, "test with"))
    first = FolderContents(root / train, names)
    return first, first if train == test else FolderContents(root / test, names)


def check(train: str, test: str, names: Sequence[str], num_classes: int, others: Callable[[], Sequence[str]]) -> None:
    """Raise DataError if there are not `num_classes` classes to train on, or others to test with."""
    if len(names) != num_classes:
        raise DataError(f"{train}: it has {len(names)} classes, model.numClasses says {num_classes}; use {len(names)}")
    there = set(others())
    if unknown := sorted(there - set(names)):
        raise DataError(f"{test}: class {unknown[0]} is none of {train}; both need the same folders of classes")
    if missing := sorted(set(names) - there):
        raise DataError(f"{test}: class {missing[0]} is missing; both need the same folders of classes")


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking: a pipe without a writer would block its thread for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_size(size: int) -> None:
    """Raise OSError, without `errno`, for a file that is too large for an image."""
    if size > _MOST_BYTES:
        raise OSError(f"it has {size} bytes, and {_MOST_BYTES} are the most")


def _size(path: str) -> int:
    """Return a file's size in bytes; -1 for a dangling link, which `read` reports later."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return -1


def _images(root: Path, below: str = "", above: tuple[tuple[int, int], ...] = ()) -> Iterator[bytes]:
    """Yield the names of the images below a class folder, relative to it. Raises DataError.

    `above` has device and inode of the parent folders: following a link back to one of them would never end.
    """
    place = os.path.join(root, below)
    images: list[str] = []
    folders: list[str] = []
    try:
        status = os.stat(place)
        with os.scandir(place) as found:
            for entry in found:
                if entry.name.startswith("."):
                    continue
                if entry.name.lower().endswith(SUFFIXES):
                    images.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
    except OSError as error:
        raise read_errors.failure(f"{error.filename}: the folder of a class cannot be read", error) from None
    own = (status.st_dev, status.st_ino)
    if own in above:
        return
    for name in images:
        yield os.fsencode(os.path.join(below, name))
    for name in folders:
        yield from _images(root, os.path.join(below, name), (*above, own))
