"""Reads image folders and MindRecord files in object storage while the training goes on, by way of the bounded cache.

Names, order, labels and fingerprint are those of the same files on a disk. Only lists of names, indexes and labels are
read before the first step.
"""

import copy
import errno
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer import config
from resnetboost_trainer.data.download import FIELD
from resnetboost_trainer.data.sources import class_names, imagefolder, mindrecord
from resnetboost_trainer.data.sources.mindrecord import MindRecordContents
from resnetboost_trainer.data.sources.source import Files
from resnetboost_trainer.data.stream import Stream
from resnetboost_trainer.failures import DataError
from resnetboost_trainer.storage import address, cache
from resnetboost_trainer.storage.bucket import Bucket, Missing, Object

# Lists and indexes that are read at the same time.
_THREADS = 16
# Headers and labels are read in blocks of that size; they lie close together, apart from the images.
_BLOCK_BYTES = 1 << 20
_BLOCKS_HELD = 4
# Rows that begin within that many bytes are fetched with one request, as it takes as long as one of them.
_GROUP_BYTES = 16 << 10


_S = TypeVar("_S", "_Folder", "_Records")


class _Place:
    """A data set's address, with the cache of what is read there."""

    def __init__(self, dataset: config.Dataset, settings: ObjectStorage) -> None:
        """Raises ConfigError for an address, a bucket or credentials that are wrong."""
        self.bucket = Bucket(address.parse(dataset.path or "", FIELD), settings.retry_seconds)
        self.bucket.check()
        self.copies = cache.of(settings)
        self.name = str(self.bucket.address)

    def read(self, found: Object, start: int = 0, end: int | None = None) -> bytes:
        """Return an object or a part of it. Raises StorageError, and OSError for an object that is gone."""
        try:
            return self.copies.read(self.bucket, found, start, end)
        except Missing:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.name}/{found.key}") from None


def folder(dataset: config.Dataset, num_classes: int, settings: ObjectStorage) -> Files:
    """Find the images as `imagefolder.read`. Raises ConfigError, DataError, StorageError."""
    place = _Place(dataset, settings)
    train, test = dataset.train_folder or "train", dataset.test_folder or "val"
    names = _classes(place, train, "train on")
    if dataset.validation_split is not None:
        imagefolder.check(f"{place.name}/{train}", "", names, num_classes, lambda: names)
        whole = _Folder(place, train, names)
        return Files(whole, _again(whole), tuple(names))
    others = functools.partial(_classes, place, test, "test with")
    imagefolder.check(f"{place.name}/{train}", f"{place.name}/{test}", names, num_classes, others)
    return Files(_Folder(place, train, names), _Folder(place, test, names), tuple(names))


def _again(whole: _S) -> _S:
    """Return the same images with a stream of their own: each of both parts announces what it needs."""
    other = copy.copy(whole)
    other.stream = whole.stream.again()
    return other


def _classes(place: _Place, name: str, role: str) -> list[str]:
    found = [each for each in place.bucket.folders(name) if not each.startswith(".")]
    if not found:
        there = ", ".join(place.bucket.folders()[:4]) or "nothing"
        expected = "lay images out as train/CLASS/NAME.jpg and val/CLASS/NAME.jpg"
        other = "dataset.trainFolder and dataset.testFolder name other folders"
        problem = f"no folders in it; the images to {role} need a folder for each class"
        raise DataError(f"{place.name}/{name}: {problem}; {expected} in {place.name}, which holds {there} ({other})")
    return found


class _Class(NamedTuple):
    """The images of a class: names, bytes, and what changes with the content. Arrays: there may be millions."""

    names: Sequence[bytes]
    sizes: NDArray[np.int64]
    tags: NDArray[np.bytes_]


class _Folder(imagefolder.Names):
    """The images of one part."""

    def __init__(self, place: _Place, part: str, classes: Sequence[str]) -> None:
        """List the images. Raises DataError for a class without images, StorageError."""
        self._place, self._part = place, part
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="listing") as threads:
            found = list(threads.map(self._images, classes))
        super().__init__(f"{place.name}/{part}", classes, [each.names for each in found])
        self._sizes = np.concatenate([each.sizes for each in found])
        self._tags = np.concatenate([each.tags for each in found])
        self.stream = Stream(self._fetch, self._sizes)

    def read(self, index: int) -> bytes:
        return self.stream.take(index)

    def digest(self) -> str:
        return self.digest_with(lambda index: int(self._sizes[index]))

    def _fetch(self, index: int) -> bytes:
        size = int(self._sizes[index])
        imagefolder.check_size(size)
        key = self.name(index).removeprefix(f"{self._place.name}/")
        return self._place.read(Object(key, size, self._tags[index].decode()))

    def _images(self, name: str) -> _Class:
        """List a class as it would be listed on a disk: nothing hidden, and no folder that is named like an image."""
        prefix = f"{self._part}/{name}"
        found = []
        for item in self._place.bucket.objects(prefix):
            below = item.key[len(prefix) + 1 :]
            parts = below.split("/")
            images = [part.lower().endswith(imagefolder.SUFFIXES) for part in parts]
            if images[-1] and not any(images[:-1]) and not any(part.startswith(".") for part in parts):
                found.append((os.fsencode(below), item.bytes, (item.content or item.tag).encode()))
        names, sizes, tags = zip(*sorted(found), strict=True) if found else ((), (), ())
        return _Class(names, np.array(sizes, np.int64), np.array(tags, np.bytes_))


def records(dataset: config.Dataset, num_classes: int, settings: ObjectStorage) -> Files:
    """Open the files at the address, as `mindrecord.read`. Raises ConfigError, DataError, StorageError."""
    place = _Place(dataset, settings)
    objects = {item.key: item for item in place.bucket.objects() if "/" not in item.key}

    def part(beginnings: tuple[str, ...]) -> _Records:
        found = _Records(place, objects, mindrecord.chosen(objects, beginnings, place.name))
        mindrecord.check(found, num_classes)
        return found

    train = part(mindrecord.PARTS[0])
    test = part(mindrecord.PARTS[1]) if dataset.validation_split is None else _again(train)
    names = objects.get(mindrecord.CLASSES)
    return Files(train, test, () if names is None else class_names.parse(place.read(names)))


class _Records(MindRecordContents):
    """The rows of one part; their images are fetched by ranges of their files."""

    stream: Stream

    def __init__(self, place: _Place, objects: Mapping[str, Object], names: Sequence[str]) -> None:
        """Read headers, indexes and labels. Raises DataError, StorageError."""
        self._files = [_RemoteFile(place, objects[name], objects.get(f"{name}.db")) for name in names]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="index") as threads:
            self._set(list(threads.map(lambda file: mindrecord.shard(file.name, lambda: file), self._files)))
        self._groups = [_groups(shard.spans[:, 2:]) for shard in self._shards]
        sizes = np.concatenate([shard.spans[:, 3] - shard.spans[:, 2] for shard in self._shards])
        self.stream = Stream(self._fetch, sizes)

    def read(self, index: int) -> bytes:
        shard, _ = self._place(index)
        return shard.image(self.stream.take(index))

    def _fetch(self, index: int) -> bytes:
        """Return a row's blob, of the group of rows that is fetched with it."""
        shard, row = self._place(index)
        start, end = (int(place) for place in shard.spans[row, 2:])
        mindrecord.check_row(start, end)
        number = self._shards.index(shard)
        first, last = (int(place) for place in self._groups[number][row])
        return self._files[number].part(first, last)[start - first : end - first]


def _groups(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Start and end (rows, 2) of what is fetched for each row, whose own are `spans` (rows, 2).

    Rows that begin in the same 16 KiB are fetched together; one that is larger is fetched alone.
    """
    start, end = spans.T
    large = end - start >= _GROUP_BYTES
    _, group = np.unique(start // _GROUP_BYTES, return_inverse=True)
    first = np.full(group.max() + 1, np.iinfo(np.int64).max)
    last = np.zeros_like(first)
    np.minimum.at(first, group[~large], start[~large])
    np.maximum.at(last, group[~large], end[~large])
    return np.stack([np.where(large, start, first[group]), np.where(large, end, last[group])], axis=1)


class _RemoteFile:
    """A MindRecord file in object storage, and the index beside it."""

    def __init__(self, place: _Place, found: Object, database: Object | None) -> None:
        self._place, self._found, self._database = place, found, database
        self.name, self.size = f"{place.name}/{found.key}", found.bytes
        self._block = functools.lru_cache(_BLOCKS_HELD)(self._read_block)

    def read(self, length: int, start: int) -> bytes:
        end = min(start + length, self.size)
        blocks = range(start // _BLOCK_BYTES, -(-end // _BLOCK_BYTES))
        data = b"".join(self._block(number) for number in blocks)
        first = start - blocks.start * _BLOCK_BYTES
        return data[first : first + end - start]

    def part(self, start: int, end: int) -> bytes:
        """Return a part of the file by one request. Raises OSError, StorageError."""
        return self._place.read(self._found, start, end)

    def index(self) -> NDArray[np.int64]:
        if self._database is None:
            raise mindrecord.no_index(f"{self.name}.db")
        with tempfile.TemporaryDirectory(prefix="resnetboost-index-") as folder:
            path = Path(folder) / "index.db"
            self._place.copies.link(self._place.bucket, self._database, path)
            return mindrecord.rows_of(path, f"{self.name}.db")

    def _read_block(self, number: int) -> bytes:
        start = number * _BLOCK_BYTES
        return self.part(start, min(start + _BLOCK_BYTES, self.size))
