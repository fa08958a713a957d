"""Weight snapshots during a stage, for PCA: schedule, format, lookup, pruning and reading.

A snapshot is stored like a checkpoint of its attempt and contains all trainable weights as one flat vector. The volume
is untrusted: snapshots are read as plain numbers and verified by the hash in their manifest.
"""

import concurrent.futures
import hashlib
import itertools
import logging
import math
import operator
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.store import Arrays, Damaged, File, Kind, Manifest
from resnetboost_trainer.failures import ConfigError, StorageError

if TYPE_CHECKING:
    from mindspore import Parameter

Floats = NDArray[np.float32]

FILE = "weights.safetensors"
TENSOR = "weights"

# The CRD allows 1000 per stage; killed attempts leave a few duplicates.
MAX_MANIFESTS = 2000
# The header of a file with one tensor takes about a hundred bytes.
HEADER_LIMIT_BYTES = 4096
# Bytes per read when a file is only hashed.
PIECE_BYTES = 1 << 20
# Reading and hashing both release the GIL.
THREADS = 2

log = logging.getLogger(__name__)


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot's file as its manifest describes it; `layout` identifies the order of the weights in it."""

    path: Path
    step: int
    sha256: str
    bytes: int
    layout: str


def due(rule: config.Snapshots, step: int, per_epoch: int) -> bool:
    """True if this step is the one closest to a scheduled snapshot epoch (`from_epoch + i * every_epochs`)."""
    if step < _nearest(rule, 0, per_epoch):
        return False
    if rule.every_epochs * per_epoch < 1:
        return True
    position = math.floor((step / per_epoch - rule.from_epoch) / rule.every_epochs)
    return any(_nearest(rule, i, per_epoch) == step for i in range(max(position - 1, 0), position + 3))


def _nearest(rule: config.Snapshots, i: int, per_epoch: int) -> int:
    """Return the step closest to the i-th scheduled epoch; .5 rounds up, since `round` would merge neighbours."""
    return math.floor((rule.from_epoch + i * rule.every_epochs) * per_epoch + 0.5)


def vector(parameters: Sequence["Parameter"]) -> Floats:
    """Copy the parameters into one vector (M,), in order."""
    return np.concatenate([parameter.asnumpy().reshape(-1) for parameter in parameters])


def layout(parameters: Sequence["Parameter"]) -> str:
    """Return a hash of the vector's layout: the parameters' names and shapes in order."""
    named = [(parameter.name, [int(size) for size in parameter.shape]) for parameter in parameters]
    return hashlib.sha256(msgspec.json.encode(named)).hexdigest()


def contents(weights: Floats) -> dict[str, Arrays]:
    """Return a snapshot's contents for `store.write`."""
    return {FILE: {TENSOR: weights}}


def find(root: Path, job_uid: str, stage: str, last_step: float = math.inf, kind: Kind = "snapshot") -> list[Snapshot]:
    """List a stage's snapshots up to `last_step`, ascending, one per step from the latest attempt; read manifests only.

    Raises ConfigError if they belong to different networks, OSError.
    """
    found: dict[int, tuple[Snapshot, Manifest]] = {}
    paths = store.candidates(root, job_uid, stage, kind=kind)
    for path in itertools.islice((path for path in paths if _step(path) <= last_step), MAX_MANIFESTS):
        if _step(path) in found:
            continue
        try:
            found[_step(path)] = _described(path)
        except Damaged as damage:
            log.warning("snapshot %s is damaged (%s); skipping it", path, damage)
    ascending = [found[step] for step in sorted(found)]
    for snapshot, manifest in ascending:
        _check_same(snapshot.path.parent, manifest, ascending[-1][1])
    return [snapshot for snapshot, _ in ascending]


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _described(path: Path) -> tuple[Snapshot, Manifest]:
    manifest = store.read_manifest(path)
    if FILE not in manifest.files or not manifest.layout:
        raise Damaged(f"{store.MANIFEST}: it lists no {FILE}, or not of which layout it is")
    file = manifest.files[FILE]
    return Snapshot(path / FILE, manifest.step, file.sha256, file.bytes, manifest.layout), manifest


def _check_same(path: Path, manifest: Manifest, last: Manifest) -> None:
    for field in ("model", "layout"):
        theirs, lasts = getattr(manifest, field), getattr(last, field)
        if theirs != lasts:
            difference = f"its {field} is {theirs!r}, that of step {last.step} is {lasts!r}"
            raise ConfigError(
                f"snapshot {path} is of another network than others of its stage: {difference}; remove it"
            )


def prune(root: Path, job_uid: str, stage: str, attempt: int, keep: int, written: Path) -> None:
    """Delete all but `keep` snapshots of this and older attempts: keep `written` (the newest) and those before it.

    An older attempt's snapshots of later steps do not count: this attempt replaces them or never gets so far.
    """
    store.remove(surplus(store.candidates(root, job_uid, stage, attempt + 1, "snapshot"), keep, written))
    store.sweep(root, job_uid, stage, attempt)


def surplus(paths: Sequence[Path], keep: int, written: Path) -> list[Path]:
    """Of snapshots, furthest step first, those that `prune` deletes."""
    steps = [list(same) for _, same in itertools.groupby(paths, operator.attrgetter("name"))]
    replaced = [path for same in steps for path in same[1:]]
    reached = [same[0] for same in steps if _step(same[0]) <= _step(written)]
    return replaced + reached[keep:]


def adopt(root: Path, found: Sequence[Snapshot], ours: Manifest, kind: Kind = "snapshot") -> None:
    """Copy another job's snapshots into this attempt, so that they outlive that job. Raises StorageError, OSError.

    Files are hard-linked if the volume supports it. Kind "origin" replaces what older attempts adopted, which may be
    incomplete or from an earlier point of the other job.
    """
    of = (ours.job_uid, ours.stage)
    if kind == "origin":
        store.remove(store.candidates(root, *of, ours.attempt, kind))
    for snapshot in found:
        manifest = msgspec.structs.replace(ours, step=snapshot.step, layout=snapshot.layout)
        store.write_files(store.attempt_directory(root, *of, ours.attempt), manifest, _taker(snapshot), kind)


def _taker(snapshot: Snapshot) -> store.Fill:
    def take(partial: Path) -> dict[str, File]:
        os.close(_opened(snapshot))
        store.link(snapshot.path, partial / FILE)
        return {FILE: File(snapshot.bytes, snapshot.sha256)}

    return take


class Reader:
    """Reads ranges of all snapshots side by side, with memory for one range only.

    Uses plain reads instead of mmap: pages of a mapping count as this process's memory once touched. A pass over all
    numbers in order also hashes them, so that `verify` need not read the files again.
    """

    def __init__(self, snapshots: Sequence[Snapshot], numbers: int) -> None:
        """Open snapshots of `numbers` values each. Raises StorageError for a file that is not one."""
        self.numbers = numbers
        self._files: list[_File] = []
        self._buffer = np.empty((len(snapshots), 0), np.float32)
        self._hashed = 0  # numbers hashed so far; reads out of order are not hashed
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="snapshots")
        try:
            for snapshot in snapshots:
                self._files.append(_File(snapshot, numbers))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._threads.shutdown()
        while self._files:
            os.close(self._files.pop().descriptor)

    def read(self, start: int, stop: int) -> Floats:
        """Return numbers `start` to `stop` of all snapshots, (N, stop - start), valid until the next call.

        Raises StorageError.
        """
        if not 0 <= start <= stop <= self.numbers:
            raise ValueError(f"numbers {start} to {stop} of {self.numbers}")
        if stop - start > self._buffer.shape[1]:
            self._buffer = np.empty((len(self._files), stop - start), np.float32)
        rows = self._buffer[:, : stop - start]
        if start == stop:  # a rank's part may be empty
            return rows
        hashing = start == self._hashed
        pairs = list(zip(self._files, rows, strict=True))
        shares = [pairs[thread::THREADS] for thread in range(THREADS)]
        list(self._threads.map(lambda share: _read_share(share, start, hashing), shares))
        if hashing:
            self._hashed = stop
        return rows

    def verify(self) -> None:
        """Check every snapshot against its hash. Raises StorageError naming one that has changed.

        Uses the hashes of the numbers read if one pass has read them all in order, else reads the files again.
        """
        for file, digest in zip(self._files, self._threads.map(self._digest, self._files), strict=True):
            if digest != file.snapshot.sha256:
                reason = f"{file.snapshot.path}: its contents have changed since it was written"
                raise StorageError(f"{reason}; restore it, or remove its folder if this stage has no checkpoint yet")

    def _digest(self, file: "_File") -> str:
        return file.hash.hexdigest() if self._hashed == self.numbers else file.digest()


class _File:
    """An open snapshot file and the running hash of what was read in order."""

    def __init__(self, snapshot: Snapshot, numbers: int) -> None:
        self.snapshot, self.descriptor = snapshot, _opened(snapshot)
        try:
            header = self._header(numbers)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.start, self.hash = len(header), hashlib.sha256(header)

    def _header(self, numbers: int) -> bytes:
        """Read and check the safetensors header, which precedes the numbers."""
        length = int.from_bytes(os.pread(self.descriptor, 8, 0), "little")
        header = os.pread(self.descriptor, 8 + min(length, HEADER_LIMIT_BYTES), 0)
        if self.snapshot.bytes != len(header) + 4 * numbers or length > HEADER_LIMIT_BYTES:
            raise StorageError(f"{self.snapshot.path}: it does not hold {numbers} numbers")
        try:
            parsed = msgspec.json.decode(header[8:], type=_Header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise StorageError(f"{self.snapshot.path}: its header is not a snapshot's: {error}") from error
        if parsed.weights != _Tensor("F32", [numbers], [0, 4 * numbers]):
            raise StorageError(f"{self.snapshot.path}: its header is not that of {numbers} numbers in float32")
        return header

    def read(self, row: Floats, number: int, hashing: bool) -> None:
        """Fill `row` with the numbers from index `number` on."""
        rest, position = row.data.cast("B"), self.start + 4 * number
        while rest:
            read = self._read(rest, position)
            if not read:
                raise StorageError(f"{self.snapshot.path}: it has become shorter")
            rest, position = rest[read:], position + read
        if hashing:
            self.hash.update(row.data)

    def digest(self) -> str:
        """Return the SHA-256 of the file's current content."""
        piece, position, digest = memoryview(bytearray(PIECE_BYTES)), 0, hashlib.sha256()
        while read := self._read(piece, position):
            digest.update(piece[:read])
            position += read
        return digest.hexdigest()

    def _read(self, into: memoryview, position: int) -> int:
        try:
            return os.preadv(self.descriptor, [into], position)
        except OSError as error:
            raise StorageError(f"{self.snapshot.path}: {error.strerror}") from error


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: list[int]


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    weights: _Tensor


def _read_share(share: Sequence[tuple[_File, Floats]], start: int, hashing: bool) -> None:
    for file, row in share:
        file.read(row, start, hashing)


def _opened(snapshot: Snapshot) -> int:
    """Open a regular file without following links or blocking on a pipe; return its descriptor."""
    try:
        descriptor = os.open(snapshot.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{snapshot.path}: {error.strerror}") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == snapshot.bytes:
        return descriptor
    os.close(descriptor)
    raise StorageError(f"{snapshot.path}: it is not a regular file of {snapshot.bytes} bytes")
