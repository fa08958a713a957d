"""Lets so many threads work at once, a number that may change at any time, and counts for how long they did."""

import contextlib
import threading
import time
from collections.abc import Iterator


class Slots:
    """Places for workers; `worked` is how many seconds they worked, added up over all that are done."""

    def __init__(self, count: int) -> None:
        self.worked = 0.0
        self._count, self._taken = count, 0
        self._changed = threading.Condition()

    def allow(self, count: int) -> None:
        """From now on there are so many, at least 1; who has one keeps it."""
        with self._changed:
            self._count = count
            self._changed.notify_all()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a place and have it."""
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
