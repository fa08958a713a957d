"""Reads images from MindRecord files by row, from any thread, without MindSpore, whose reader does neither.

A file is a header (its length in 8 bytes, then JSON), and from `header_size` on pages of `page_size` bytes. The SQLite
index beside it (FILE.db) has the page and offsets of each row's two parts, each preceded by its length in 8 bytes: the
blob and, as MessagePack, the other fields. The blob is the only binary field, or all of them, each preceded by its
length in 8 more bytes, high byte first. tests/integration compares this with MindSpore's own writer and reader.
"""

import errno
import functools
import hashlib
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data import read_errors
from resnetboost_trainer.data.sources import class_names
from resnetboost_trainer.data.sources.source import Files, place
from resnetboost_trainer.data.stream import Stream
from resnetboost_trainer.failures import DataError

LABEL = "label"
CLASSES = "classes.txt"  # class names, one per line
IMAGE = ("image", "data")  # names of the image's field if several are binary; the first one found is used
_LENGTH, _FIELD_LENGTH = struct.Struct("<Q"), struct.Struct(">Q")
_ROWS = """select PAGE_ID_RAW, PAGE_OFFSET_RAW, PAGE_OFFSET_RAW_END, PAGE_ID_BLOB, PAGE_OFFSET_BLOB,
    PAGE_OFFSET_BLOB_END from INDEXES order by ROW_ID"""
_TABLE = "select 1 from sqlite_master where type = 'table' and name = 'INDEXES'"
_NOT_READ = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)  # the file could not be read, whatever its content
PARTS = (("train",), ("val", "test"))  # how the names of files to train on and to test with begin
_MOST_HEADER_BYTES = 1 << 28
_MOST_ROW_BYTES = 1 << 28  # a row lies within a page, and this is MindSpore's largest page


Contents = TypeVar("Contents", bound="MindRecordContents")


class _Type(msgspec.Struct):
    type: str


class _Fields(msgspec.Struct):
    blob_fields: list[str]
    schema: dict[str, _Type]


class _Header(msgspec.Struct):
    header_size: int
    page_size: int
    schema: list[_Fields]
    compression_size: int = 0


class RecordFile(Protocol):
    """A MindRecord file, wherever it is."""

    @property
    def name(self) -> str:
        """Its place, for messages."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def read(self, length: int, start: int) -> bytes:
        """Return a part, or what there is of it. Raises OSError, StorageError."""

    def index(self) -> NDArray[np.int64]:
        """Return what the index beside it says, as `rows_of` does. Raises like that."""


class _LocalFile:
    """An open file of this machine."""

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, os.fspath(path)
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would block for ever
        self.size = os.fstat(self._file).st_size

    def read(self, length: int, start: int) -> bytes:
        return os.pread(self._file, length, start)

    def index(self) -> NDArray[np.int64]:
        database = self._path.with_name(f"{self._path.name}.db")
        if not database.is_file():
            raise no_index(os.fspath(database))
        os.close(os.open(database, os.O_RDONLY | os.O_NONBLOCK))  # SQLite does not report why it cannot open a file
        return rows_of(database, os.fspath(database))


class MindRecordContents:
    """The rows of several MindRecord files in order; each has an image in its blob and an integer field `label`."""

    stream: Stream | None = None

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open all files and read their labels. Raises DataError."""
        self._set([shard(os.fspath(path), functools.partial(_LocalFile, path)) for path in paths])

    def _set(self, shards: "Sequence[Shard]") -> None:
        self._shards = shards
        self._firsts = np.cumsum([0, *(len(shard.labels) for shard in self._shards)])
        self.labels: NDArray[np.int32] = np.concatenate([shard.labels for shard in self._shards])

    def name(self, index: int) -> str:
        shard, row = self._place(index)
        return f"{shard.name}, row {row}"

    def read(self, index: int) -> bytes:
        shard, row = self._place(index)
        return shard.image(shard.blob(row))

    def digest(self) -> str:
        """Hash the labels and every row's position and length, but no image content."""
        digest = hashlib.blake2b(self.labels.tobytes(), digest_size=8)
        for shard in self._shards:
            digest.update(shard.spans.tobytes())
        return digest.hexdigest()

    def _place(self, index: int) -> "tuple[Shard, int]":
        number = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return self._shards[number], index - int(self._firsts[number])


def shard(name: str, opened: Callable[[], RecordFile]) -> "Shard":
    """Open a file. Raises DataError, StorageError."""
    try:
        return Shard(opened())
    except OSError as error:
        raise read_errors.failure(f"{error.filename or name}: cannot be read", error) from None


class Shard:
    """One open MindRecord file."""

    def __init__(self, file: RecordFile) -> None:
        """Read header, index and labels. Raises OSError, DataError, StorageError."""
        self._file, self.name, self._size = file, file.name, file.size
        header = self._header()
        rows = file.index()
        self.spans = self._spans(header, rows)
        self._blob_place = self._image_field(header)
        self.labels = np.array([self._label(row) for row in range(len(rows))], np.int32)

    def blob(self, row: int) -> bytes:
        """Return the row's blob. Raises OSError."""
        return self._read(self.spans[row, 2], self.spans[row, 3])

    def image(self, blob: bytes) -> bytes:
        """Return the image field of a row's blob. Raises OSError."""
        data = blob[_LENGTH.size :]
        if self._blob_place is None:
            return data
        try:
            for _ in range(self._blob_place):
                data = data[_FIELD_LENGTH.size + _FIELD_LENGTH.unpack_from(data)[0] :]
            return data[_FIELD_LENGTH.size : _FIELD_LENGTH.size + _FIELD_LENGTH.unpack_from(data)[0]]
        except struct.error:
            raise OSError("the row is damaged") from None

    def _spans(self, header: _Header, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start and end in the file of each row's other fields and of its blob (rows, 4). Raises DataError."""
        size, page_size, header_size = self._size, header.page_size, header.header_size
        if not (0 < page_size < 1 << 31 and 0 < header_size <= size):
            raise DataError(f"{self.name}: not a MindRecord file; write it with `resnetboost data to-mindrecord`")
        # The bounds exclude overflow below, whatever the index contains.
        possible = (rows >= 0).all(1) & (rows <= [size // page_size, size, size] * 2).all(1)
        starts = np.where(possible[:, None], rows[:, [0, 0, 3, 3]], 0) * page_size + header_size
        spans: NDArray[np.int64] = starts + np.where(possible[:, None], rows[:, [1, 2, 4, 5]], 0)
        wrong = ~possible | (spans[:, 0] > spans[:, 1]) | (spans[:, 2] > spans[:, 3]) | (spans > size).any(1)
        if wrong.any():
            raise DataError(f"{self.name}: row {int(np.argmax(wrong))} is damaged; write the file again")
        return spans

    def _read(self, start: int, end: int) -> bytes:
        check_row(start, end)
        data = self._file.read(int(end - start), int(start))
        if len(data) != end - start:
            raise OSError(f"the file ends {end - start - len(data)} bytes before the row does")
        return data

    def _header(self) -> _Header:
        size = _LENGTH.unpack(self._file.read(_LENGTH.size, 0).ljust(_LENGTH.size, b"\xff"))[0]
        if size > _MOST_HEADER_BYTES:
            raise DataError(f"{self.name}: not a MindRecord file; write it with `resnetboost data to-mindrecord`")
        try:
            header = msgspec.json.decode(self._file.read(size, _LENGTH.size), type=_Header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise DataError(
                f"{self.name}: not a MindRecord file; write it with `resnetboost data to-mindrecord`"
            ) from None
        if header.compression_size:
            raise DataError(f"{self.name}: its images are compressed a second time; write it without compression")
        return header

    def _image_field(self, header: _Header) -> int | None:
        """Index of the image among a row's binary fields; None if it is the only one."""
        found = header.schema[0] if header.schema else _Fields([], {})
        fields = [name for name in found.blob_fields if found.schema.get(name, _Type("")).type == "bytes"]
        named = fields if len(fields) == 1 else [name for name in IMAGE if name in fields]
        if not named:
            binary = ", ".join(found.blob_fields) or "none"
            raise DataError(f"{self.name}: none of its binary fields ({binary}) is the image; call it {IMAGE[0]}")
        return None if len(found.blob_fields) == 1 else found.blob_fields.index(named[0])

    def _label(self, row: int) -> int:
        try:
            fields: Any = msgspec.msgpack.decode(self._read(self.spans[row, 0], self.spans[row, 1])[_LENGTH.size :])
            label = fields.get(LABEL)
        except (OSError, msgspec.DecodeError, AttributeError, TypeError, UnicodeDecodeError, RecursionError) as error:
            if read_errors.is_outage(error):
                raise
            raise DataError(f"{self.name}: row {row} is damaged; write the file again") from None
        if not isinstance(label, int) or not 0 <= label < 1 << 31:
            raise DataError(
                f"{self.name}: row {row} has the {LABEL} {label!r:.100}; a class number from 0 on is needed"
            )
        return label


def check_row(start: int, end: int) -> None:
    """Raise OSError, without `errno`, for a row that is larger than any, or too small for its own length."""
    if end - start < _LENGTH.size:
        raise OSError("the row is damaged")
    if end - start > _MOST_ROW_BYTES:
        raise OSError(f"the row has {end - start} bytes, and {_MOST_ROW_BYTES} are the most")


def no_index(name: str) -> DataError:
    """Return the error for a file without its index."""
    return DataError(f"{name}: missing; a MindRecord file is of no use without the index beside it")


def rows_of(database: Path, name: str) -> NDArray[np.int64]:
    """Page, start and end of each row's other fields and of its blob (rows, 6). Raises DataError, OSError."""
    try:
        with sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro&immutable=1", uri=True) as connection:
            if not connection.execute(_TABLE).fetchone():  # a view may have endless rows
                raise DataError(f"{name}: not the index of a MindRecord file; write the file again")
            rows = connection.execute(_ROWS).fetchall()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_READ:  # the higher bits are the failed call
            raise OSError(errno.EIO, str(error), name) from None
        raise DataError(f"{name}: not the index of a MindRecord file ({error}); write the file again") from None
    if not rows:
        raise DataError(f"{name.removesuffix('.db')}: no rows in it; at least one is needed")
    try:
        return np.array(rows, np.int64)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{name}: some of its rows have no numbers; write the file again") from None


def read(dataset: config.Dataset, num_classes: int) -> Files:
    """Find the files below the data set's path, and the class names if they lie beside them. Raises DataError."""
    root = place(dataset)
    return Files(*contents(root, num_classes, dataset.validation_split is None), classes(root))


def contents(root: Path, num_classes: int, tested: bool = True) -> tuple[MindRecordContents, MindRecordContents]:
    """Return training and test images: files named train... and val... or test.... Raises DataError.

    If they are not `tested` with, the second are not looked at, and the first come twice.
    """
    try:
        names = [entry.name for entry in os.scandir(root)]
    except OSError as error:
        raise read_errors.failure(f"{root}: the folder of MindRecord files cannot be read", error) from None

    def part(beginnings: tuple[str, ...]) -> MindRecordContents:
        files = [root / name for name in chosen(names, beginnings, os.fspath(root))]
        return check(MindRecordContents(files), num_classes)

    train = part(PARTS[0])
    return train, part(PARTS[1]) if tested else train


def check(part: MindRecordContents, num_classes: int) -> MindRecordContents:
    """Return the rows. Raise DataError if one has a label that the network lacks."""
    wrong = np.flatnonzero(part.labels >= num_classes)
    if wrong.size:
        raise DataError(
            f"{part.name(int(wrong[0]))}: label {part.labels[wrong[0]]} is not one of 0 to {num_classes - 1}"
            f" (model.numClasses: {num_classes})"
        )
    return part


def classes(root: Path) -> tuple[str, ...]:
    """Return the class names if they are beside the files, as `resnetboost data to-mindrecord` writes them."""
    return class_names.read(root / CLASSES)


def chosen(names: Iterable[str], beginnings: tuple[str, ...], root: str) -> list[str]:
    """Return the names of a part's files in their order. Raises DataError if there is none."""
    found = [name for name in names if name.startswith(beginnings) and ".mindrecord" in name and name[-3:] != ".db"]
    if not found:
        raise DataError(
            f"{root}: no file {beginnings[0]}*.mindrecord*; MindRecord needs train* and val* with theirs .db"
        )
    return sorted(found, key=lambda name: (len(name), name))
