"""Writes TensorBoard's event files: scalars of each stage, in a folder for each job and stage, or in object storage.

An event file is a sequence of records of TFRecord, each an Event of TensorFlow's event.proto. Scalars need five of its
fields, which are written here by hand instead of by another package.
"""

import math
import os
import platform
import struct
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from resnetboost_api.tracking import TensorBoard as Settings
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.storage import address
from resnetboost_trainer.storage.bucket import Bucket
from resnetboost_trainer.tracking.tracker import Point, Run, Tracker

_FOLDER, _FIELD = "tensorboard", "tracking.tensorboard.path"
_PART_BYTES = 256 << 10
_RETRY_SECONDS = 10  # the tracker's thread repeats what fails
_VERSION = b"brain.Event:2"
_MOST = 3.4028234e38  # the largest number of 32 bits
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed
_MASK = 0xA282EAD8
# Keys of fields: number and wire type. Event.wall_time, step, file_version, summary and session_log; Summary.value;
# Value.tag and simple_value; SessionLog.status.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 0x09, 0x10, 0x1A, 0x2A, 0x3A
_VALUE, _TAG, _SIMPLE_VALUE = 0x0A, 0x0A, 0x15
_SESSION_STARTS = b"\x08\x01"


class TensorBoard(Tracker):
    """Appends points to one file per attempt. The first one hides what earlier attempts wrote from its step on."""

    def __init__(self, settings: Settings, checkpoints: Path | None) -> None:
        """Raises ConfigError if there is no folder for the files, or no access to their address."""
        super().__init__({})
        if settings.path is None and checkpoints is None:
            raise ConfigError(f"{_FIELD}: is missing; without checkpoints, event files need a folder")
        self._root = settings.path or f"{checkpoints}/{_FOLDER}"
        self._bucket: Bucket | None = None
        if address.is_address(self._root):
            self._bucket = Bucket(address.parse(self._root, _FIELD), _RETRY_SECONDS)
        self._events: _File | _Objects | None = None
        self._begun = False

    def start(self, run: Run) -> None:
        self._folder = f"{run.job}-{run.uid[:8]}/{run.stage}"
        self._attempt = run.attempt

    def log(self, points: Sequence[Point]) -> None:
        self._events = self._events or self._open()
        events = [_event(point.time, point.step, _SUMMARY, _summary(point)) for point in points]
        if not self._begun:
            events = [_event(points[0].time, points[0].step, _SESSION_LOG, _SESSION_STARTS), *events]
        version = _event(points[0].time, 0, _FILE_VERSION, _VERSION)
        self._events.append(_record(version), b"".join(map(_record, events)))
        self._begun = True

    def _open(self) -> "_File | _Objects":
        """Create a file whose name sorts after those of earlier attempts."""
        name = f"events.out.tfevents.{time.time():010.0f}.{platform.node()}.{os.getpid()}.{self._attempt}"
        if self._bucket is not None:
            return _Objects(self._bucket, f"{self._folder}/{name}")
        folder = Path(self._root, self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        return _File(folder / name)


class _File:
    """An event file of this machine."""

    def __init__(self, path: Path) -> None:
        self._file, self._size = FileIO(path, "xb"), 0

    def append(self, version: bytes, records: bytes) -> None:
        """Append to the file, or leave it as it was: half a record would end it for its readers."""
        data = records if self._size else version + records
        self._file.seek(self._size)
        self._file.truncate()
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        self._size += written


class _Objects:
    """An event file in object storage, which knows no appending: in parts, whose names sort in their order.

    The last part is written again as it grows. TensorBoard reads on where it was, as in a file that grows.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._number, self._part = 0, b""

    def append(self, version: bytes, records: bytes) -> None:
        """Append to the last part, or begin another. Raises StorageError, after which the same may be appended."""
        is_full = len(self._part) >= _PART_BYTES
        number = self._number + is_full
        part = (b"" if is_full else self._part) or version
        self._bucket.put(f"{self._key}.{number:06}", part + records)
        self._number, self._part = number, part + records


def _event(wall_time: float, step: int, key: int, value: bytes) -> bytes:
    return b"%c%s%c%s%s" % (_WALL_TIME, struct.pack("<d", wall_time), _STEP, _varint(step), _field(key, value))


def _summary(point: Point) -> bytes:
    values = ((name, struct.pack("<f", _float32(value))) for name, value in point.values.items())
    return b"".join(_field(_VALUE, b"%s%c%s" % (_field(_TAG, name.encode()), _SIMPLE_VALUE, it)) for name, it in values)


def _float32(value: float) -> float:
    """The value, or the nearest that 32 bits hold."""
    return max(-_MOST, min(_MOST, value)) if math.isfinite(value) else value


def _field(key: int, value: bytes) -> bytes:
    """A field of varying length."""
    return b"%c%s%s" % (key, _varint(len(value)), value)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _sum(length) + data + _sum(data)


def _sum(data: bytes) -> bytes:
    """CRC-32C, masked as in TFRecord: a sum of data that itself contains sums would be weak."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _entry(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
    return number


_TABLE = tuple(map(_entry, range(256)))
