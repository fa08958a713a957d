"""Principal components of snapshots by one method in its own process: seconds, peak memory and the components.

Ours reads the files a chunk at a time and hashes what it reads, as the trainer does; scikit-learn's solvers have them
in memory first, IncrementalPCA only one batch at a time. The peak is VmHWM, the largest resident size, with the
interpreter and libraries and without the page cache, as no method maps files.
"""

import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from resnetboost_trainer.checkpoint import snapshots
from resnetboost_trainer.checkpoint.snapshots import Snapshot
from resnetboost_trainer.optim.pca import gram
from resnetboost_trainer.optim.pca.gram import Floats

COMPONENTS = 32


class Task(msgspec.Struct, frozen=True):
    """Snapshots of `numbers` values, of which the first `used` count; ours writes `basis` of their columns of P.

    With `keep`, the components are left in a file of the contender's name in the root, for comparisons.
    """

    root: str
    numbers: int
    used: int
    basis: int
    keep: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """`reading` of the `seconds` were spent reading files; `shares` are those of the explained variance."""

    seconds: float
    reading: float
    peak_mib: float
    shares: list[float]


def main(name: str, task: Task) -> None:
    """Print the outcome in one line."""
    _stay_within_memory()
    files = snapshots.find(Path(task.root), "bench", "base")
    run = _Ours(files, task) if name == "ours" else _Theirs(name, files, task)
    started = time.perf_counter()
    found, shares = run.run()
    outcome = Outcome(time.perf_counter() - started, run.reading, _peak_mib(), [float(share) for share in shares])
    if task.keep:
        np.save(Path(task.root, name), found)
    print(msgspec.json.encode(outcome).decode())


def _stay_within_memory() -> None:
    """Limit this process' memory, so that it fails instead of having the system kill another process."""
    free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(free.split()[1]),) * 2)


def _peak_mib() -> float:
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


class _Ours:
    """All components in one pass over the files, then the wanted columns of the basis."""

    def __init__(self, files: Sequence[Snapshot], task: Task) -> None:
        self.files, self.task, self.reading = files, task, 0.0

    def run(self) -> tuple[Floats, Any]:
        with snapshots.Reader(self.files, self.task.numbers) as self.reader:
            inner = gram.products(self._read, 0, self.task.used, len(self.files))
            if self.task.used == self.task.numbers:
                self.reader.verify()
            found = gram.components(inner, COMPONENTS)
            return gram.basis(found, self._read, 0, self.task.basis), found.share

    def _read(self, start: int, stop: int) -> Floats:
        started = time.perf_counter()
        rows = self.reader.read(start, stop)
        self.reading += time.perf_counter() - started
        return rows


class _Theirs:
    """scikit-learn's PCA with that solver, or IncrementalPCA for `incremental`, with the least memory it needs."""

    def __init__(self, name: str, files: Sequence[Snapshot], task: Task) -> None:
        from sklearn.decomposition import PCA, IncrementalPCA

        self.name, self.files, self.task, self.reading = name, files, task, 0.0
        self.batches = [list(files)]
        if name == "incremental":  # the first batch must have at least as many rows as components are wanted
            self.batches = [list(files[:COMPONENTS]), list(files[COMPONENTS:])]
            self.pca = IncrementalPCA(COMPONENTS, copy=False)
        else:
            self.pca = PCA(COMPONENTS, svd_solver=name, copy=False, random_state=0)

    def run(self) -> tuple[Any, Any]:
        for batch in self.batches:
            (self.pca.partial_fit if self.name == "incremental" else self.pca.fit)(self._load(batch))
        return self.pca.components_, self.pca.explained_variance_ratio_

    def _load(self, batch: Sequence[Snapshot]) -> Floats:
        started = time.perf_counter()
        rows = np.empty((len(batch), self.task.used), np.float32)
        for row, snapshot in zip(rows, batch, strict=True):
            with snapshot.path.open("rb") as file:
                file.seek(snapshot.bytes - 4 * self.task.numbers)
                file.readinto(row.data)
        self.reading += time.perf_counter() - started
        return rows


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Task))
