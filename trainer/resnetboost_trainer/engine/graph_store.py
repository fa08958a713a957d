"""Stores compiled graphs on disk, one file each: atomic writes, verification by hash. Must not import MindSpore.

A graph is code: it may name a library to load. So only files that this user owns and nobody else may write are read;
anybody who can write to the volume as the trainer's user can run programs in the trainer.
"""

import hashlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

# Contents by MindSpore's file names, with NUMBER in place of the graph's number.
Graph = dict[str, bytes]
NUMBER = "#"

SUFFIX, TRIAL = ".graph", "trial"
DIGEST_BYTES = 32
ENVIRONMENTS = 4  # whose graphs are kept: a gang of 4 ranks that runs as 2 and as 1 has three
_FILE_NAME = re.compile(r"[A-Za-z_]+#?\.[a-z]+")

log = logging.getLogger(__name__)


class Damaged(Exception):
    """The bytes are not valid graphs; the message says why."""


def encode(graphs: Mapping[str, Graph]) -> bytes:
    """Encode graphs by their keys, preceded by a hash."""
    payload = msgspec.msgpack.encode(dict(graphs))
    return hashlib.sha256(payload).digest() + payload


def decode(data: bytes) -> dict[str, Graph]:
    """Decode the result of `encode`. Raises Damaged."""
    payload = data[DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != data[:DIGEST_BYTES]:
        raise Damaged("its content has changed since it was written")
    try:
        graphs = msgspec.msgpack.decode(payload, type=dict[str, Graph])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Damaged(str(error)) from error
    if not all(_FILE_NAME.fullmatch(name) for graph in graphs.values() for name in graph):
        raise Damaged("it names files that MindSpore does not write")
    return graphs


class Store:
    """The graphs of one stage. Writing the first graph of an environment deletes those of all but the newest others.

    Graphs of another environment are not read; a gang that changes its size and returns to it finds its own.

    A trial marks the first run of a graph that was read: if the process dies in it, the next start drops all graphs.
    """

    def __init__(self, root: Path, environment: str) -> None:
        self.root, self.folder = root, root / environment[:32]

    def read(self) -> dict[str, Graph]:
        """Read the usable graphs by key. Never fails: what cannot be read is compiled again."""
        try:
            return self._read()
        except OSError as error:
            log.warning("compiled graphs in %s cannot be read, so all are compiled: %s", self.root, error.strerror)
            return {}

    def try_out(self, begun: bool) -> None:
        """Begin or end the trial of a graph that was read. Raises OSError."""
        if begun:
            (self.root / TRIAL).touch()
        else:
            (self.root / TRIAL).unlink(missing_ok=True)

    def write(self, key: str, graph: Graph) -> None:
        """Write a graph. Never fails: training continues without."""
        try:
            self._write(self.folder / (key + SUFFIX), encode({key: graph}))
        except OSError as error:
            log.warning("a compiled graph cannot be kept in %s: %s", self.folder, error.strerror)

    def _read(self) -> dict[str, Graph]:
        if (self.root / TRIAL).exists():
            log.warning("the last start ended while a kept graph ran for the first time, so all are compiled again")
            shutil.rmtree(self.root)
        found: dict[str, Graph] = {}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                found |= _verified(path)
            except Damaged as reason:
                log.warning("compiled graph %s is not used: %s", path.name, reason)
        return found

    def _write(self, path: Path, data: bytes) -> None:
        if not self.folder.exists():
            self._delete_oldest()
            self.folder.mkdir(parents=True, mode=0o700)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with open(partial, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)

    def _delete_oldest(self) -> None:
        """Make room for another environment."""
        if self.root.exists():
            folders = [path for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]
            newest = sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)
            for folder in newest[ENVIRONMENTS - 1 :]:
                shutil.rmtree(folder, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _verified(path: Path) -> dict[str, Graph]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & stat.S_IWOTH:
            raise Damaged("somebody else could have written it")
        graphs = decode(file.read())
    if list(graphs) != [path.stem]:
        raise Damaged("it holds another graph")
    return graphs
