"""Compiled graphs on disk, one file each: written whole or not at all, verified before use; no MindSpore here.

A graph is code: it may name a library to load. So only what this very user wrote, and nobody else can, is read; whoever
may write to the volume as the trainer's user can run programs in it.
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

# Contents by the names MindSpore gives the files, with NUMBER in the place of the graph's own.
Graph = dict[str, bytes]
NUMBER = "#"

SUFFIX, TRIAL = ".graph", "trial"
DIGEST_BYTES = 32
_FILE_NAME = re.compile(r"[A-Za-z_]+#?\.[a-z]+")

log = logging.getLogger(__name__)


class Damaged(Exception):
    """Why bytes are no graphs."""


def encode(graphs: Mapping[str, Graph]) -> bytes:
    """Graphs by their keys, with a hash in front."""
    payload = msgspec.msgpack.encode(dict(graphs))
    return hashlib.sha256(payload).digest() + payload


def decode(data: bytes) -> dict[str, Graph]:
    """The graphs of `encode`. Raises Damaged."""
    payload = data[DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != data[:DIGEST_BYTES]:
        raise Damaged("it is not what was written")
    try:
        graphs = msgspec.msgpack.decode(payload, type=dict[str, Graph])
    except msgspec.DecodeError as error:
        raise Damaged(str(error)) from error
    if not all(_FILE_NAME.fullmatch(name) for graph in graphs.values() for name in graph):
        raise Damaged("it names files that MindSpore does not write")
    return graphs


class Store:
    """The graphs of one stage. Those of another environment are not read, and go when this one's first is written.

    A graph is on trial while it runs for the first time: should the process die of it, the next start does without all.
    """

    def __init__(self, root: Path, environment: str) -> None:
        self.root, self.folder = root, root / environment[:32]

    def read(self) -> dict[str, Graph]:
        """What can be used, by key. Never fails: what cannot be read is compiled again."""
        try:
            return self._read()
        except OSError as error:
            log.warning("compiled graphs in %s cannot be read, so all are compiled: %s", self.root, error.strerror)
            return {}

    def try_out(self, begun: bool) -> None:
        """A graph that was read is about to run for the first time, or has run. Raises OSError."""
        if begun:
            (self.root / TRIAL).touch()
        else:
            (self.root / TRIAL).unlink(missing_ok=True)

    def write(self, key: str, graph: Graph) -> None:
        """Keep a graph. Never fails: training goes on without."""
        try:
            self._write(self.folder / (key + SUFFIX), encode({key: graph}))
        except OSError as error:
            log.warning("a compiled graph cannot be kept in %s: %s", self.folder, error.strerror)

    def _read(self) -> dict[str, Graph]:
        if (self.root / TRIAL).exists():
            log.warning("the last start did not outlive a compiled graph that was kept, so all are compiled again")
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
            shutil.rmtree(self.root, ignore_errors=True)
            self.folder.mkdir(parents=True, mode=0o700)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with open(partial, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)


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
        raise Damaged("it is of another graph")
    return graphs
