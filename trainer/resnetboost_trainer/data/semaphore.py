"""A semaphore of variable size that measures how long threads hold it."""

import contextlib
import threading
import time
from collections.abc import Iterator


class ResizableSemaphore:
    """Limits how many threads work at once; `worked` is the sum of the seconds that they held it."""

    def __init__(self, count: int) -> None:
        self.worked = 0.0
        self._count, self._taken = count, 0
        self._changed = threading.Condition()

    def allow(self, count: int) -> None:
        """Change the size, to at least 1; threads that hold the semaphore keep it."""
        with self._changed:
            self._count = count
            self._changed.notify_all()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Hold the semaphore."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken < self._count)
            self._taken += 1
        begun = time.perf_counter()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self.worked += time.perf_counter() - begun
                self._changed.notify()
