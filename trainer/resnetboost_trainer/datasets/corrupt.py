"""Counts the images that cannot be used and says which, up to the number that a job puts up with."""

import logging
import threading
from collections.abc import Callable

from resnetboost_trainer.verdict import DataError

log = logging.getLogger(__name__)


class Corrupt:
    """The unusable images that this rank came across, each counted and named once; from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counted: Callable[[], None] = lambda: None  # called for each, e.g. by a metric
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def add(self, name: str, reason: str) -> None:
        """One more, or one that is known. Raises DataError when they are too many."""
        with self._lock:
            if name in self._names:
                return
            self._names.add(name)
            found = len(self._names)
        self.counted()
        log.warning("skipped %s: %s (%d of at most %d)", name, reason, found, self.limit)
        if found > self.limit:
            raise DataError(
                f"{name}: {reason}; it is image {found} that cannot be used, and dataset.maxCorruptImages is"
                f" {self.limit}; mend or remove them (the log names each), or raise the limit"
            )
