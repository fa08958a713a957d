"""Counts the images that cannot be used and says which, up to the number that a job puts up with."""

import hashlib
import logging
import threading
from collections.abc import Callable

from resnetboost_trainer.failures import DataError

log = logging.getLogger(__name__)

_MOST_MARKS = 40  # a termination message has 2048 bytes


class Corrupt:
    """The unusable images that this rank came across, each counted and named once; from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counted: Callable[[], None] = lambda: None  # called for each, e.g. by a metric
        self._names: dict[str, None] = {}  # in the order they were met
        self._lock = threading.Lock()

    @property
    def found(self) -> int:
        """How many there are so far."""
        return len(self._names)

    @property
    def marks(self) -> tuple[str, ...]:
        """A mark for each of the first of them, the same on every rank: several may have met the same image."""
        with self._lock:
            return tuple(_mark(name) for name in list(self._names)[:_MOST_MARKS])

    def add(self, name: str, reason: str) -> None:
        """One more, or one that is known. Raises DataError when they are too many."""
        with self._lock:
            if name in self._names:
                return
            self._names[name] = None
            found = len(self._names)
        self.counted()
        log.warning("skipped %s: %s (%d of at most %d)", name, reason, found, self.limit)
        if found > self.limit:
            raise DataError(
                f"{name}: {reason}; it is image {found} that cannot be used, and dataset.maxCorruptImages is"
                f" {self.limit}; mend or remove them (the log names each), or raise the limit"
            )


def _mark(name: str) -> str:
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=4).hexdigest()
