"""Counts and logs corrupt images, and fails the job above `dataset.maxCorruptImages`."""

import hashlib
import logging
import threading
from collections.abc import Callable

from resnetboost_trainer.failures import DataError

log = logging.getLogger(__name__)

_MOST_MARKS = 40  # a termination message has 2048 bytes


class Corrupt:
    """The corrupt images that this rank has found, each counted and logged once. Thread-safe."""

    def __init__(self, limit: int, ranks: int = 1) -> None:
        """`limit` is that of each of the `ranks` whose work this one does: fewer ranks meet more images each."""
        self.limit = limit * ranks
        self._of_each = f"{limit}" if ranks == 1 else f"{limit} for each of the {ranks} ranks whose work this one does"
        self.counted: Callable[[], None] = lambda: None  # called for each image, e.g. to update a metric
        self._names: dict[str, None] = {}  # in the order of discovery
        self._lock = threading.Lock()

    @property
    def found(self) -> int:
        """Number of corrupt images so far."""
        return len(self._names)

    @property
    def marks(self) -> tuple[str, ...]:
        """Hashes of the first images' names, equal on all ranks: several ranks may have found the same image."""
        with self._lock:
            return tuple(_mark(name) for name in list(self._names)[:_MOST_MARKS])

    def add(self, name: str, reason: str) -> None:
        """Count an image unless it is known already. Raises DataError above the limit."""
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
                f" {self._of_each}; repair or remove them (the log names each), or raise the limit"
            )


def _mark(name: str) -> str:
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=4).hexdigest()
