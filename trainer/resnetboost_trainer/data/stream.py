"""Fetches images from far away ahead of their use, in threads, in the order in which they will be used.

How fast they come changes nothing in what they are: an image that is not there yet is waited for, and one that nobody
announced is fetched next.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

# Images that are fetched or wait for their use have so many bytes at most, but for those that are waited for.
AHEAD_BYTES = 64 << 20
_AHEAD_IMAGES = 4096
# Requests at the same time: each waits for the network most of its time.
_THREADS = 32
# A thread that has nothing to do ends after that.
_IDLE_SECONDS = 5.0

T = TypeVar("T")


class _Coming:
    """An image that will be used so many times more."""

    def __init__(self) -> None:
        self.future: Future[bytes] = Future()
        self.uses, self.begun = 0, False


class Stream:
    """The images of a split. Thread-safe; its threads end by themselves."""

    def __init__(self, fetch: Callable[[int], bytes], sizes: NDArray[np.int64]) -> None:
        """`fetch` returns the image of an index, from any thread; `sizes` (n,) are the bytes that it then holds."""
        self._fetch, self._sizes = fetch, sizes
        self._changed = threading.Condition()
        self._coming: dict[int, _Coming] = {}
        self._queue: deque[int] = deque()
        self._urgent: deque[int] = deque()
        self._queued = self._held = self._threads = 0

    def again(self) -> "Stream":
        """Return a stream of the same images, with announcements of its own."""
        return Stream(self._fetch, self._sizes)

    def ahead(self, requests: Iterable[T], images: Callable[[T], NDArray[np.int64]]) -> Iterator[T]:
        """Yield the requests, while the images of those to come are fetched. Forget what an earlier call announced."""
        self.forget()
        coming: deque[T] = deque()
        for request in requests:
            self._announce([int(index) for index in images(request)])
            coming.append(request)
            while coming and self._is_enough():
                yield coming.popleft()
        yield from coming

    def take(self, index: int) -> bytes:
        """Return an image, fetched now if it was not announced. Raises what `fetch` raises."""
        with self._changed:
            entry = self._coming.get(index)
            if entry is None:
                entry = self._coming[index] = _Coming()
                entry.uses = 1
                self._queued += int(self._sizes[index])
            if not entry.begun:
                self._urgent.append(index)
                self._start_thread()
                self._changed.notify()
        try:
            return entry.future.result()
        finally:
            self._used(index, entry)

    def forget(self) -> None:
        """Announce nothing any more; whoever waits for an image does so in vain."""
        with self._changed:
            for entry in self._coming.values():
                entry.future.cancel()
            self._coming, self._queue, self._urgent = {}, deque(), deque()
            self._queued = self._held = 0

    def _is_enough(self) -> bool:
        return self._queued + self._held >= AHEAD_BYTES or len(self._coming) >= _AHEAD_IMAGES

    def _announce(self, indices: list[int]) -> None:
        with self._changed:
            for index in indices:
                entry = self._coming.get(index)
                if entry is None:
                    entry = self._coming[index] = _Coming()
                    self._queue.append(index)
                    self._queued += int(self._sizes[index])
                    self._start_thread()
                entry.uses += 1
            self._changed.notify(len(indices))

    def _used(self, index: int, entry: _Coming) -> None:
        with self._changed:
            entry.uses -= 1
            if not entry.uses and self._coming.get(index) is entry:
                del self._coming[index]
                self._held -= int(self._sizes[index])
                if self._has_work():
                    self._start_thread()  # they ended if there was no room for long
                    self._changed.notify()

    def _start_thread(self) -> None:
        if self._threads < min(_THREADS, len(self._queue) + len(self._urgent)):
            self._threads += 1
            # A daemon: at the end of the process nobody waits for a storage that does not answer.
            threading.Thread(target=self._work, name="stream", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(self._has_work, _IDLE_SECONDS):
                    self._threads -= 1
                    return
                index, entry = self._next()
            if entry is None:
                continue
            try:
                self._finish(entry, self._fetch(index), None)
            except BaseException as error:
                self._finish(entry, b"", error)

    def _has_work(self) -> bool:
        return bool(self._urgent) or bool(self._queue and (self._held < AHEAD_BYTES))

    def _next(self) -> tuple[int, _Coming | None]:
        index = (self._urgent or self._queue).popleft()
        entry = self._coming.get(index)
        if entry is None or entry.begun:  # it was urgent before
            return index, None
        entry.begun = True
        self._queued -= int(self._sizes[index])
        self._held += int(self._sizes[index])
        return index, entry

    @staticmethod
    def _finish(entry: _Coming, data: bytes, error: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):  # it is if it was forgotten meanwhile
            if error is None:
                entry.future.set_result(data)
            else:
                entry.future.set_exception(error)


class Selection:
    """The stream of a split whose images are some of those of `whole`, by their indices there."""

    def __init__(self, whole: Stream, indices: NDArray[np.int64]) -> None:
        self._whole, self._indices = whole, indices

    def ahead(self, requests: Iterable[T], images: Callable[[T], NDArray[np.int64]]) -> Iterator[T]:
        """As `Stream.ahead`, by indices of the split."""
        return self._whole.ahead(requests, lambda request: self._indices[images(request)])

    def forget(self) -> None:
        """As `Stream.forget`."""
        self._whole.forget()
