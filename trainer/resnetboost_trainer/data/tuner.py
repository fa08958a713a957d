"""Measures how batches are taken and periodically applies `autotune`; makes no batches."""

import logging

from resnetboost_trainer.data import autotune
from resnetboost_trainer.data.autotune import Setting, Take

WINDOW = 50  # batches between two decisions

log = logging.getLogger(__name__)


class Tuner:
    """Tuner of one loader, which has at most `most_workers` threads."""

    def __init__(self, most_workers: int) -> None:
        self.most_workers = most_workers
        self._takes: list[Take] = []
        self._skipped = autotune.MOST_AHEAD

    def look(self, now: Setting, take: Take) -> Setting:
        """Record the take and return the setting to use from now on; batches begun before a change do not count."""
        self._takes.append(take)
        if len(self._takes) <= self._skipped + WINDOW:
            return now
        seen = autotune.observed(self._takes[self._skipped :])
        then = autotune.tuned(now, seen, self.most_workers)
        if then != now:
            text = "data: workers %d, batches ahead %d; training waited %.0f %% of the time of the last %d batches"
            log.info(text, then.workers, then.ahead, 100 * seen.waited, WINDOW)
        self._takes, self._skipped = [take], autotune.MOST_AHEAD if then != now else 0
        return then
