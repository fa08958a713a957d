"""Writes TensorBoard's event files: scalars of each stage, in a folder for each job and stage.

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
from resnetboost_trainer.tracking.tracker import Point, Run, Tracker

_FOLDER = "tensorboard"
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
        """Raises ConfigError if there is no folder for the files."""
        super().__init__({})
        if settings.path is None and checkpoints is None:
            raise ConfigError("tracking.tensorboard.path: is missing; without checkpoints, event files need a folder")
        self._root = Path(settings.path) if settings.path is not None else checkpoints / _FOLDER  # type: ignore[operator]
        self._file: FileIO | None = None
        self._size = 0

    def start(self, run: Run) -> None:
        self._folder = self._root / f"{run.job}-{run.uid[:8]}" / run.stage
        self._attempt = run.attempt

    def log(self, points: Sequence[Point]) -> None:
        self._file = self._file or self._open()
        events = [_event(point.time, point.step, _SUMMARY, _summary(point)) for point in points]
        if not self._size:
            version = _event(points[0].time, 0, _FILE_VERSION, _VERSION)
            events = [version, _event(points[0].time, points[0].step, _SESSION_LOG, _SESSION_STARTS), *events]
        self._append(b"".join(map(_record, events)))

    def _open(self) -> FileIO:
        """Create a file whose name sorts after those of earlier attempts."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():010.0f}.{platform.node()}.{os.getpid()}.{self._attempt}"
        return FileIO(self._folder / name, "xb")

    def _append(self, data: bytes) -> None:
        """Append to the file, or leave it as it was: half a record would end it for its readers."""
        assert self._file is not None
        self._file.seek(self._size)
        self._file.truncate()
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        self._size += written


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
