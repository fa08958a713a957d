"""MindRecord files written byte by byte: odd paths, and malformed indexes and headers."""

import errno
import os
import sqlite3
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resnetboost_trainer.data.sources.mindrecord import MindRecordContents
from resnetboost_trainer.failures import DataError, StorageError
from support import openfiles

HEADER_SIZE = PAGE_SIZE = 4096
HEADER = {
    "header_size": HEADER_SIZE,
    "page_size": PAGE_SIZE,
    "schema": [{"blob_fields": ["image"], "schema": {"image": {"type": "bytes"}}}],
}
COLUMNS = (
    "ROW_ID, PAGE_ID_RAW, PAGE_OFFSET_RAW, PAGE_OFFSET_RAW_END, PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END"
)
Rows = list[tuple[Any, ...]]


def behind_its_length(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def record(folder: Path, header: bytes | None = None, fields: bytes | None = None) -> tuple[Path, Rows]:
    """A file of two rows with one page of labels and one of images, and the expected index."""
    folder.mkdir(exist_ok=True)
    raw = behind_its_length(msgspec.msgpack.encode({"label": 7}) if fields is None else fields)
    images = [behind_its_length(b"first"), behind_its_length(b"the second")]
    parts = [behind_its_length(msgspec.json.encode(HEADER) if header is None else header), raw * 2, b"".join(images)]
    sizes = [HEADER_SIZE, PAGE_SIZE, PAGE_SIZE]
    path = folder / "train.mindrecord"
    path.write_bytes(b"".join(part.ljust(size, b"\0") for part, size in zip(parts, sizes, strict=True)))
    size, first = len(raw), len(images[0])
    return path, [(0, 0, 0, size, 1, 0, first), (1, 0, size, 2 * size, 1, first, first + len(images[1]))]


def index(path: Path, rows: Rows) -> Path:
    path.with_name(f"{path.name}.db").unlink(missing_ok=True)
    connection = sqlite3.connect(f"{path}.db")
    connection.execute(f"create table INDEXES ({COLUMNS})")
    connection.executemany("insert into INDEXES values (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize("name", ["plain", "a folder", "what?mode=memory", "number #2", "100%25", "ä"])
def test_a_file_is_read_at_any_path(name: str, tmp_path: Path) -> None:
    contents = MindRecordContents([index(*record(tmp_path / name))])
    assert contents.labels.tolist() == [7, 7]
    assert [contents.read(row) for row in (1, 0)] == [b"the second", b"first"]


@pytest.mark.parametrize("value", [None, "text", b"\0", float("inf"), -1, 2**62, 2**63 - 1, PAGE_SIZE * 4])
@pytest.mark.parametrize("column", range(1, 7))
def test_an_inconsistent_index_is_refused(value: Any, column: int, tmp_path: Path) -> None:
    path, rows = record(tmp_path)
    rows[1] = (*rows[1][:column], value, *rows[1][column + 1 :])
    with pytest.raises(DataError, match=r"row 1 is damaged|some of its rows have no numbers"):
        MindRecordContents([index(path, rows)])


@pytest.mark.parametrize(
    "change", [{"page_size": 2**62}, {"page_size": 0}, {"header_size": -1}, {"header_size": 2**70}]
)
def test_an_inconsistent_header_is_refused(change: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a MindRecord file"):
        MindRecordContents([index(*record(tmp_path, msgspec.json.encode(HEADER | change)))])


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    header = msgspec.json.encode(HEADER)[:-1] + b',"more":' + b"[" * 100_000
    with pytest.raises(DataError, match="not a MindRecord file"):
        MindRecordContents([index(*record(tmp_path / "header", header))])
    with pytest.raises(DataError, match="row 0 is damaged"):
        MindRecordContents([index(*record(tmp_path / "row", fields=b"\x91" * 1900))])


def test_an_index_with_an_endless_query_is_refused(tmp_path: Path) -> None:
    path, _ = record(tmp_path)
    connection = sqlite3.connect(f"{path}.db")
    numbers = "with recursive n(k) as (select 0 union all select k + 1 from n limit 1000000)"
    connection.execute(f"create view INDEXES ({COLUMNS}) as {numbers} select k, 0, 0, 9, 0, 0, 9 from n")
    connection.commit()
    connection.close()
    with pytest.raises(DataError, match="not the index of a MindRecord file; write"):
        MindRecordContents([path])


def test_an_unreadable_index_is_an_outage(tmp_path: Path) -> None:
    path, _ = record(tmp_path)
    path.with_name(f"{path.name}.db").symlink_to("/proc/self/mem")  # whose first byte is an input/output error
    with pytest.raises(
        StorageError, match=r"train\.mindrecord\.db: cannot be read: disk I/O error; repair the storage"
    ):
        MindRecordContents([path])


def test_an_index_that_cannot_be_opened_is_not_damaged(tmp_path: Path) -> None:
    path = index(*record(tmp_path))
    sentence = r"train\.mindrecord\.db: cannot be read: Too many open files; raise the limit of open files"
    with openfiles.at_most(1), pytest.raises(DataError, match=sentence):  # opening the file itself exceeds the limit
        MindRecordContents([path])


def test_an_outage_while_labels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = index(*record(tmp_path))
    pread = os.pread

    def away(file: int, size: int, offset: int) -> bytes:
        if offset >= HEADER_SIZE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", away)
    with pytest.raises(
        StorageError, match=r"train\.mindrecord: cannot be read: Input/output error; repair the storage"
    ):
        MindRecordContents([path])
