"""A folder of this machine with copies of objects and of parts of them, shared by its processes and bounded.

A copy counts only with the hash that was taken when it was fetched. When there are too many bytes, those that were used
the longest time ago are deleted. Nothing that a killed process leaves behind is taken for a copy.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from io import BufferedRandom, FileIO
from pathlib import Path

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.storage.bucket import Bucket, Object

GIGABYTE = 1 << 30
# Of the limit, what is left after a deletion: it lists the whole folder, and is not to happen again soon.
_LEFT = 0.9
_SUM = ".sha256"
_SUM_CHARACTERS = 64
# A part begins with its hash: one file instead of two, and there are millions.
_PART_SUM_BYTES = 16
# How many bytes there are at most, by all processes: those of killed ones are counted until the next listing.
_COUNT = "bytes.txt"
_COUNT_CHARACTERS = 20
# Files of that age that are not complete were left by killed processes.
_LEFT_BEHIND_SECONDS = 3600

log = logging.getLogger(__name__)


def of(settings: ObjectStorage) -> "Cache":
    """Return the cache that a job names, or this user's. Raises OSError."""
    own = Path(tempfile.gettempdir()) / f"resnetboost-cache-{os.geteuid()}"
    return Cache(Path(settings.cache_path) if settings.cache_path else own, settings.cache_gigabytes * GIGABYTE)


class Cache:
    """The copies in a folder. Safe for several threads and processes; two that miss the same object both fetch it."""

    def __init__(self, root: Path, limit: int) -> None:
        """Make the folder, for this user alone. Raises OSError."""
        self.root, self.limit = root, limit
        self._lock = threading.Lock()
        self._full = False
        self.hits = self.misses = 0
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read(self, bucket: Bucket, found: Object, start: int = 0, end: int | None = None) -> bytes:
        """Return an object's content, or a part of it. Raises Missing, StorageError.

        Where the folder cannot be read or written, as on a full disk, the content comes from the storage each time.
        """
        end = found.bytes if end is None else end
        path = self._path(bucket, found, f"{start}-{end}")
        data = _part(path)
        if data is None:
            self.misses += 1
            data = bucket.read_part(found, start, end)
            self._keep(path, data)
        else:
            self.hits += 1
        return data

    def link(self, bucket: Bucket, found: Object, to: Path) -> None:
        """Give an object's copy another name, under which it stays when the cache deletes it.

        Raises Missing, StorageError, OSError, and ConfigError for an object that is larger than the cache.
        """
        path = self._path(bucket, found)
        to.parent.mkdir(parents=True, exist_ok=True)
        if _intact(path) and _link(path, to):
            self.hits += 1
            return
        self.misses += 1
        self._fetch(bucket, found, path)
        while not _link(path, to):
            self._fetch(bucket, found, path)

    def _path(self, bucket: Bucket, found: Object, part: str = "") -> Path:
        """Another content of an object has another name here."""
        told = f"{bucket.endpoint}\n{bucket.address.below(found.key)}\n{found.tag}\n{found.bytes}\n{part}".rstrip("\n")
        name = hashlib.sha256(told.encode()).hexdigest()
        return self.root / name[:2] / name

    def _fetch(self, bucket: Bucket, found: Object, path: Path) -> None:
        if found.bytes > self.limit:
            size = f"it has {found.bytes / GIGABYTE:.1f} GiB, and the cache {self.limit / GIGABYTE:g}"
            raise ConfigError(f"{bucket.address.below(found.key)}: {size}; raise storage.cacheGigabytes")
        with self._making(path, found.bytes) as file:
            bucket.download(found, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            path.with_name(path.name + _SUM).write_text(digest)

    def _keep(self, path: Path, data: bytes) -> None:
        if len(data) + _PART_SUM_BYTES > self.limit:
            return
        try:
            with self._making(path, len(data) + _PART_SUM_BYTES) as file:
                file.write(_sum(data))
                file.write(data)
        except OSError as error:
            if not self._full:
                log.warning("%s: cannot keep copies there: %s; they are fetched each time", self.root, error.strerror)
            self._full = True

    @contextlib.contextmanager
    def _making(self, path: Path, size: int) -> Iterator[BufferedRandom]:
        """Write a copy: it is there as a whole, and only if nothing is raised."""
        path.parent.mkdir(exist_ok=True)
        self._make_room(size)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
            os.rename(name, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _make_room(self, needed: int) -> None:
        """Count a coming copy, and delete others if it would be too much; list the folder for that only then."""
        with self._lock, _locked(self.root / _COUNT) as file:
            count = _number(file.read(_COUNT_CHARACTERS))
            if count is None or count + needed > self.limit:
                count = self._reduced(needed)
            file.seek(0)
            file.write(b"%0*d" % (_COUNT_CHARACTERS, count + needed))

    def _reduced(self, needed: int) -> int:
        """Return how many bytes there are, after deleting some if so many more would be too much."""
        copies = sorted(_copies(self.root))
        there = sum(size for _, size, _ in copies)
        if there + needed <= self.limit:
            return there
        for _, size, path in copies:
            if there + needed <= self.limit * _LEFT:
                break
            for name in (path, path + _SUM):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            there -= size
        return there


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """Open a file for this process alone."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0) as file:
        with contextlib.suppress(OSError):  # a network's file system without locks: the count is nearly right then
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _number(text: bytes) -> int | None:
    return int(text) if len(text) == _COUNT_CHARACTERS and text.isdigit() else None


def _copies(root: Path) -> Iterator[tuple[float, int, str]]:
    """List the copies: when they were used, their bytes and paths. Remove what killed processes left behind."""
    now = time.time()
    for folder in (entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.startswith("."):
                    if status.st_mtime < now - _LEFT_BEHIND_SECONDS:
                        os.unlink(entry.path)
                elif not entry.name.endswith(_SUM):
                    yield status.st_mtime, status.st_size, entry.path


def _intact(path: Path) -> bool:
    """Tell whether a copy, which may be large, is the one that was fetched, and note that it was used."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        expected = path.with_name(path.name + _SUM).read_text()
        os.utime(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    return digest == expected[:_SUM_CHARACTERS]


def _link(path: Path, to: Path) -> bool:
    """Give a copy another name; False if another process has deleted it meanwhile, to make room. Raises OSError."""
    try:
        try:
            os.link(path, to)
        except FileNotFoundError:
            raise
        except OSError:  # it is on another volume
            shutil.copyfile(path, to)
    except FileNotFoundError:
        if not to.parent.exists():
            raise
        return False
    return True


def _part(path: Path) -> bytes | None:
    """Return a part's content and note that it was used; None if there is none, or another one than was fetched."""
    try:
        sealed = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    data = sealed[_PART_SUM_BYTES:]
    return data if sealed[:_PART_SUM_BYTES] == _sum(data) else None


def _sum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_PART_SUM_BYTES).digest()
