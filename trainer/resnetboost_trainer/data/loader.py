"""Data loader: prefetches batches in threads, in the order of the requests. The sampler chooses the samples.

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
    """Request for a batch: `size` samples of `whole`, from `first` on.

    With `rng` the samples are augmented, and a corrupt one is replaced by the next usable one of `whole`: the same on
    any number of ranks. Without, it is marked and left black. `mixing` has its own generators and the position of the
    first sample in the epoch.
    """

    whole: Indices
    first: int
    size: int
    rng: SampleRNG | None = None
    mixing: tuple[SampleRNG, int] | None = None


class Batch(NamedTuple):
    """Images (n, c, h, w), labels int32 (n,) or, mixed, shares of classes float32 (n, K); `usable` (n,) is 1 or 0."""

    images: Images
    labels: NDArray[np.int32] | NDArray[np.float32]
    usable: NDArray[np.float32]


class DataLoader:
    """Makes the batches of a split in threads, which keep no state.

    With `autotune` it adjusts the number of threads, up to `workers`, and of prefetched batches by measurement.
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
        for item in wanted if self.split.stream is None else self.split.stream.ahead(wanted, _samples):
            making.append(_Making(self, item).begin())
            while len(making) > self.setting.ahead:
                yield self._take(making)
        while making:
            yield self._take(making)

    def do(self, piece: Callable[[], None]) -> None:
        """Run a task now, or in a thread as soon as one is free, the oldest task first."""
        if self._pool is None:
            piece()
        else:
            self._pieces.append(piece)
            self._pool.submit(self._do_oldest)

    def set(self, setting: Setting) -> None:
        """Apply the setting, up to the number of threads. The content of batches does not depend on it."""
        self.setting = setting
        self.semaphore.allow(setting.workers)

    def close(self) -> None:
        """Stop the threads and drop the batches that were not taken."""
        if self.split.stream is not None:
            self.split.stream.forget()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _do_oldest(self) -> None:
        with self.semaphore.one():  # take a task only now: a waiting thread would keep it from the others
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
    """A batch in progress: any thread fills parts of it, and the one that fills the last part mixes the batch."""

    def __init__(self, feed: DataLoader, wanted: BatchRequest) -> None:
        self.feed, self.split, self.wanted = feed, feed.split, wanted
        self.images = np.empty((wanted.size, *self.split.shape), np.float32)
        self.chosen = _samples(wanted).copy()
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
            place = piece.start  # a split of files fills one image at a time
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


def _samples(request: BatchRequest) -> Indices:
    return request.whole[request.first : request.first + request.size]


def cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Number of cores this process may use: its affinity, limited by the container's CPU quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text().split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return count
