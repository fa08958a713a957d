"""Makes batches ahead of their use, in threads, in the order of their requests; the sampler chooses the samples.

The bits of a batch depend on its request alone: not on threads, time or earlier batches.
"""

import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.data.autotune import LEAST_AHEAD, Setting, Take
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.dataset import Images, Indices, Split, Unreadable
from resnetboost_trainer.data.mixup import Mixing
from resnetboost_trainer.data.rng import SampleRNG
from resnetboost_trainer.data.semaphore import ResizableSemaphore
from resnetboost_trainer.data.tuner import Tuner
from resnetboost_trainer.failures import DataError


class BatchRequest(NamedTuple):
    """`size` samples of `whole`, from `first` on.

    With `rng` they are augmented, and one that cannot be used is replaced by the next of `whole` that can: the same on
    any number of ranks. Without, it is marked and left black. `mixing` has its own generators and the place in the
    epoch of the first sample.
    """

    whole: Indices
    first: int
    size: int
    rng: SampleRNG | None = None
    mixing: tuple[SampleRNG, int] | None = None


class Batch(NamedTuple):
    """Images (n, c, h, w), labels int32 (n,) or, mixed, shares of classes float32 (n, K); 1 for what is usable (n,)."""

    images: Images
    labels: NDArray[np.int32] | NDArray[np.float32]
    usable: NDArray[np.float32]


class DataLoader:
    """Make the batches of a split in threads, which decode and compute and keep no state.

    With `autotune` it measures how many threads, up to `workers`, and how many batches ahead are needed.
    """

    def __init__(
        self,
        split: Split,
        corrupt: Corrupt,
        workers: int | None = None,
        mixing: Mixing | None = None,
        autotune: bool = False,
    ) -> None:
        self.split, self.corrupt, self.mixing = split, corrupt, mixing
        threaded = split.each > 0 or mixing is not None
        self.setting = Setting(workers or cores(), LEAST_AHEAD if threaded else 0)
        self.semaphore = ResizableSemaphore(self.setting.workers)
        self._pieces: deque[Callable[[], None]] = deque()
        self._pool = ThreadPoolExecutor(self.setting.workers, "feed") if threaded else None
        self._tuner = Tuner(self.setting.workers) if threaded and autotune else None

    def batches(self, wanted: Iterable[BatchRequest]) -> Iterator[Batch]:
        """Yield a batch for each request, in their order. Raises DataError."""
        making: deque[Future[Batch]] = deque()
        for item in wanted:
            making.append(_Making(self, item).begin())
            while len(making) > self.setting.ahead:
                yield self._take(making)
        while making:
            yield self._take(making)

    def do(self, piece: Callable[[], None]) -> None:
        """Run a piece of work now, or in a thread as soon as one may work, the oldest piece first."""
        if self._pool is None:
            piece()
        else:
            self._pieces.append(piece)
            self._pool.submit(self._do_oldest)

    def set(self, setting: Setting) -> None:
        """Use the setting from now on, as far as there are threads. No bit of a batch depends on it."""
        self.setting = setting
        self.semaphore.allow(setting.workers)

    def close(self) -> None:
        """Stop the threads; batches that were not taken are dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _do_oldest(self) -> None:
        with self.semaphore.one():  # only then is a piece taken: a thread that waits would keep it from the others
            self._pieces.popleft()()

    def _take(self, making: "deque[Future[Batch]]") -> Batch:
        asked = time.perf_counter()
        batch = making.popleft().result()
        if self._tuner is not None:
            ready = sum(other.done() for other in making)
            take = Take(asked, time.perf_counter(), self.semaphore.worked, ready)
            self.set(self._tuner.look(self.setting, take))
        return batch


class _Making:
    """A batch being made: pieces by any thread, and whoever makes the last one mixes the whole."""

    def __init__(self, feed: DataLoader, wanted: BatchRequest) -> None:
        self.feed, self.split, self.wanted = feed, feed.split, wanted
        self.images = np.empty((wanted.size, *self.split.shape), np.float32)
        self.chosen = wanted.whole[wanted.first : wanted.first + wanted.size].copy()
        self.usable = np.ones(wanted.size, np.float32)
        self.future: Future[Batch] = Future()
        self._lock = threading.Lock()

    def begin(self) -> "Future[Batch]":
        each = self.split.each or self.wanted.size
        pieces = [slice(start, min(start + each, self.wanted.size)) for start in range(0, self.wanted.size, each)]
        self._left = len(pieces)
        for piece in pieces:
            self.feed.do(functools.partial(self._make, piece))
        return self.future

    def _make(self, piece: slice) -> None:
        try:
            if not self.future.done():
                self._fill(piece)
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                self._finish()
        except BaseException as error:
            with self._lock:
                if not self.future.done():
                    self.future.set_exception(error)

    def _finish(self) -> None:
        labels: NDArray[np.int32] | NDArray[np.float32] = self.split.labels[self.chosen]
        if self.feed.mixing is not None and self.wanted.mixing is not None:
            rng, place = self.wanted.mixing
            labels = self.feed.mixing.apply(self.images, self.split.labels[self.chosen], rng, place)
        self.future.set_result(Batch(self.images, labels, self.usable))

    def _fill(self, piece: slice) -> None:
        try:
            self.split.fill(self.images[piece], self.chosen[piece], self.wanted.rng)
        except Unreadable as error:
            place = piece.start  # a split that reads files is asked for one at a time
            self.feed.corrupt.add(self.split.name(int(self.chosen[place])), str(error))
            self._replace(place)

    def _replace(self, place: int) -> None:
        if self.wanted.rng is None:
            self.images[place], self.usable[place] = 0, 0
            return
        whole = self.wanted.whole
        for offset in range(1, len(whole)):
            self.chosen[place] = whole[(self.wanted.first + place + offset) % len(whole)]
            try:
                self.split.fill(self.images[place : place + 1], self.chosen[place : place + 1], self.wanted.rng)
                return
            except Unreadable as error:
                self.feed.corrupt.add(self.split.name(int(self.chosen[place])), str(error))
        raise DataError(f"{self.split.name(int(whole[0]))}: no image of its whole global batch can be used")


def cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """How many cores this process may use: its affinity, cut to the CPU quota of a surrounding container."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text().split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return count
