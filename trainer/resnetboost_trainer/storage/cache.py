"""A folder of this machine with copies of objects, shared by its processes and bounded.

A copy counts only with the hash that was taken when it was fetched. When there are too many bytes, those that were used
the longest time ago are deleted.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.storage.bucket import Bucket, Missing, Object

GIGABYTE = 1 << 30
# Of the limit, what is left after a deletion: it lists the whole folder, and is not to happen again soon.
_LEFT = 0.9
_SUM = ".sha256"
_SUM_CHARACTERS = 64


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
        self._listed, self._written = False, 0
        self.hits = self.misses = 0
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def bytes(self, bucket: Bucket, found: Object) -> bytes:
        """Return an object's content. Raises Missing, StorageError, OSError."""
        path = self._path(bucket, found)
        data = _verified(path)
        if data is None:
            self.misses += 1
            self._fetch(bucket, found, path)
            data = path.read_bytes()
        else:
            self.hits += 1
        return data

    def link(self, bucket: Bucket, found: Object, to: Path) -> None:
        """Give an object's copy another name, under which it stays when the cache deletes it. Raises like `bytes`."""
        path = self._path(bucket, found)
        if not _intact(path):
            self.misses += 1
            self._fetch(bucket, found, path)
        else:
            self.hits += 1
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, to)
        except OSError:  # it is on another volume
            shutil.copyfile(path, to)

    def _path(self, bucket: Bucket, found: Object) -> Path:
        """Another content of an object has another name here."""
        told = f"{bucket.endpoint}\n{bucket.address.below(found.key)}\n{found.tag}\n{found.bytes}"
        name = hashlib.sha256(told.encode()).hexdigest()
        return self.root / name[:2] / name

    def _fetch(self, bucket: Bucket, found: Object, path: Path) -> None:
        if found.bytes > self.limit:
            size = f"it has {found.bytes / GIGABYTE:.1f} GiB, and the cache {self.limit / GIGABYTE:g}"
            raise ConfigError(f"{bucket.address.below(found.key)}: {size}; raise storage.cacheGigabytes")
        path.parent.mkdir(exist_ok=True)
        self._make_room(found.bytes)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "w+b") as file:
                bucket.download(found.key, file, found.bytes)
                if file.tell() != found.bytes:
                    raise Missing(f"{bucket.address.below(found.key)}: it has changed since it was listed")
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            path.with_name(path.name + _SUM).write_text(digest)
            os.rename(name, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _make_room(self, needed: int) -> None:
        """Delete copies if this one would be too much; list the folder for that once in a tenth of the limit."""
        with self._lock:
            self._written += needed
            if self._listed and self._written < self.limit * (1 - _LEFT):
                return
            self._listed, self._written = True, 0
            copies = [(status.st_mtime, status.st_size, path) for path, status in _copies(self.root)]
            surplus = sum(size for _, size, _ in copies) + needed - self.limit
            if surplus <= 0:
                return
            surplus += int(self.limit * (1 - _LEFT))
            for _, size, path in sorted(copies):
                if surplus <= 0:
                    break
                path.unlink(missing_ok=True)
                path.with_name(path.name + _SUM).unlink(missing_ok=True)
                surplus -= size


def _copies(root: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    for path in root.glob("??/*"):
        with contextlib.suppress(FileNotFoundError):
            if path.suffix != _SUM and not path.name.startswith("."):
                found.append((path, path.stat()))
    return found


def _intact(path: Path) -> bool:
    """Like `_verified`, of a file that may be large."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        expected = path.with_name(path.name + _SUM).read_text()
        os.utime(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    return digest == expected[:_SUM_CHARACTERS]


def _verified(path: Path) -> bytes | None:
    """Return a copy's content and note that it was used; None if there is none, or another one than was fetched."""
    try:
        data = path.read_bytes()
        expected = path.with_name(path.name + _SUM).read_text()
        os.utime(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return data if hashlib.sha256(data).hexdigest() == expected[:_SUM_CHARACTERS] else None
