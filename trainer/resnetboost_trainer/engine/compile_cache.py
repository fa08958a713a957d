"""Keeps compiled graphs on disk, so that a restart does not compile again.

MindSpore's compile cache stores the front end's result for a cell, which is most of a compilation on CPUs, and numbers
it by the order of compilation: a run resumed at another step would get another graph. Here each graph has a key of all
it depends on (`graph_key`), and MindSpore finds only the file of that key, in a private folder. The leader keeps graphs
beside the checkpoints and broadcasts them to the other ranks.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn

from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import graph_key, graph_store
from resnetboost_trainer.engine.graph_store import NUMBER, Damaged, Graph, Store
from resnetboost_trainer.scratch import Scratch

# MindSpore's own switches, with which it would select graphs by their number alone.
SWITCHES = ("MS_COMPILER_CACHE_ENABLE", "MS_COMPILER_CACHE_PATH")

# Graphs above this are not broadcast; the number of bytes must fit a float32. ResNet-152 has some 8 MB.
LIMIT_BYTES = 1 << 24

log = logging.getLogger(__name__)


class Graphs:
    """The compiled graphs of one rank. `reused` and `compiled` count them; `seconds` is the time for both."""

    def __init__(self, known: dict[str, Graph], rank: int, store: Store | None) -> None:
        """`known` graphs may be reused; new ones are written to the `store`."""
        self.reused = self.compiled = 0
        self.seconds = 0.0
        self.known, self.store = known, store
        self._given: dict[str, int] = {}
        self._number, self._trial = 0, False
        self._scratch = _scratch() if known or store is not None else None
        for name in SWITCHES:
            os.environ.pop(name, None)
        if self._scratch is not None:
            self._place = self._scratch.path / f"rank_{rank}" / "graph_cache"
            mindspore.set_context(compile_cache_path=str(self._scratch.path))

    @classmethod
    def of_stage(cls, config: Config, communicator: Communicator, root: Path | None) -> "Graphs":
        """Return the graphs of a stage; `root` has the job's checkpoints, on the leader only.

        A collective, if the job keeps graphs.
        """
        if not config.checkpoint.keep_compiled_graphs:
            return cls({}, communicator.rank, None)
        store = None
        if root is not None and communicator.leads:
            environment = graph_key.environment(config, communicator.size)
            store = Store(root / config.job.uid / config.stage / "graphs", environment)
        known = _shared(store.read() if store is not None else {}, communicator)
        return cls(known, communicator.rank, store)

    def watch(self, *owners: object) -> None:
        """Keep and reuse the graphs of all cells that are attributes of these objects."""
        for owner in owners:
            for name, cell in [item for item in vars(owner).items() if isinstance(item[1], nn.Cell)]:
                cell.compile = self._compiling(f"{type(owner).__qualname__}.{name}", cell, cell.compile)

    def close(self) -> None:
        """Remove the private folder; every graph has run, and no more are compiled."""
        self._try_out(False)
        if self._scratch is not None:
            self._scratch.remove()

    def _compiling(self, part: str, cell: nn.Cell, plain: Callable[..., None]) -> Callable[..., None]:
        """Wrap the cell's `compile`, which MindSpore calls before each run; `part` names its purpose."""
        seen: set[tuple[object, ...]] = set()

        def compile(*arguments: Any, **named: Any) -> None:
            form = cell.training, *((argument.shape, argument.dtype) for argument in arguments)
            if self._trial:
                self._try_out(False)
            if form in seen:
                plain(*arguments, **named)
                return
            seen.add(form)
            started = time.perf_counter()
            self._first(part, cell, plain, *arguments, **named)
            self.seconds += time.perf_counter() - started

        return compile

    def _first(self, part: str, cell: nn.Cell, plain: Callable[..., None], *arguments: Any, **named: Any) -> None:
        key = graph_key.of_cell(part, cell, arguments) if self._scratch is not None else ""
        graph = self.known.get(key, {})
        if self._scratch is None or not (graph or self.store) or not self._put(graph):
            plain(*arguments, **named)
            self.compiled += 1
            return
        if graph:
            self._try_out(True)
        with _enabled():
            plain(*arguments, **named)
        made = self._take()
        self.reused, self.compiled = self.reused + (not made), self.compiled + bool(made)
        if made and self.store is not None:
            self.store.write(key, made)

    def _put(self, graph: Graph) -> bool:
        """Write a graph to where MindSpore will look for the next one; True on success."""
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            for name, data in graph.items():
                (self._place / name.replace(NUMBER, f"_{self._number}")).write_bytes(data)
            self._given = {path.name: path.stat().st_mtime_ns for path in self._place.iterdir()}
        except OSError as error:
            log.warning("a graph is compiled, as the kept ones cannot be used: %s: %s", self._place, error.strerror)
            return False
        return True

    def _take(self) -> Graph:
        """Read what MindSpore wrote of the graph it compiled; empty if it used the given one."""
        found = {path: path.stat().st_mtime_ns for path in self._place.iterdir() if path.is_file()}
        self._number += 1
        fresh = any(NUMBER in _named(path) and self._given.get(path.name) != written for path, written in found.items())
        made = {_named(path): path.read_bytes() for path in found} if fresh else {}
        for path in found:
            if NUMBER in _named(path):  # the others, of the code, are written with the first graph only
                path.unlink()
        return made

    def _try_out(self, begun: bool) -> None:
        self._trial = begun
        if self.store is not None:
            with contextlib.suppress(OSError):
                self.store.try_out(begun)


@contextlib.contextmanager
def _enabled() -> Iterator[None]:
    mindspore.set_context(enable_compile_cache=True)
    try:
        yield
    finally:
        mindspore.set_context(enable_compile_cache=False)


def _scratch() -> Scratch | None:
    """Create a private folder for this process; None if that fails."""
    try:
        return Scratch("resnetboost-graphs-")
    except OSError as error:
        log.warning("compiled graphs are neither kept nor used: %s", error)
        return None


def _named(path: Path) -> str:
    return re.sub(r"_\d+(?=\.)", NUMBER, path.name)


def _shared(own: dict[str, Graph], communicator: Communicator) -> dict[str, Graph]:
    """Broadcast the leader's graphs to all ranks. A collective."""
    if communicator.size == 1:
        return own
    data = graph_store.encode(own) if own else b""
    data = data if len(data) < LIMIT_BYTES else b""
    length = int(communicator.broadcast(np.array([len(data)], np.float32))[0])
    if not length:
        return own
    halves = np.zeros((length + 1) // 2, np.float32)  # 16 bits each: every one is an exact float32
    if communicator.leads:
        halves[:] = np.frombuffer(data.ljust(2 * len(halves), b"\0"), "<u2")
    received = communicator.broadcast(halves).astype("<u2").tobytes()[:length]
    try:
        return graph_store.decode(received)
    except Damaged as reason:
        log.warning("the leader's compiled graphs did not arrive, so all are compiled: %s", reason)
        return own
