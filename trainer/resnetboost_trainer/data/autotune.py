"""Computes the number of loader threads and of prefetched batches from measurements. Starts and stops no thread.

The time that threads are busy determines how many are needed, so one measurement suffices, without trials: the rule of
DS2 (Kalavri et al. 2018, OSDI, section 3).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WAITS = 0.05  # share of time: if training waits longer, threads or batches are added
CONTENT = 0.01  # if training waits less, some may be removed; between the two nothing changes
LOAD = 0.8  # target share of time that a thread works, so that one is free for an uneven batch
LEAST_AHEAD, MOST_AHEAD = 2, 8  # prefetched batches, each as large as those on the device
_OUTLIER = 10  # median steps; a longer one included an evaluation or a compilation


class Setting(NamedTuple):
    """Settings of a loader: concurrent threads and prefetched batches."""

    workers: int
    ahead: int


class Take(NamedTuple):
    """One batch taken by training: when it asked, when it received it, and how many more were `ready` then.

    Times are in seconds of one clock. `worked` is the sum of the seconds that all threads have worked so far.
    """

    asked: float
    given: float
    worked: float
    ready: int


class Observation(NamedTuple):
    """Measurements over several steps: share of time waited, mean number of busy threads, fewest batches ready."""

    waited: float
    busy: float
    ready: int


def observed(takes: Sequence[Take]) -> Observation:
    """Summarize the time between the first and the last of at least two takes."""
    asked, given = np.array([take.asked for take in takes[1:]]), np.array([take.given for take in takes])
    waited, computed = given[1:] - asked, asked - given[:-1]
    usual = float(np.median(np.diff(given)))
    seconds = float(np.minimum(computed, _OUTLIER * usual).sum() + waited.sum())
    busy = (takes[-1].worked - takes[0].worked) / seconds
    return Observation(float(waited.sum()) / seconds, busy, min(take.ready for take in takes[1:]))


def tuned(now: Setting, seen: Observation, most_workers: int) -> Setting:
    """Return the next setting. With a constant workload the settings converge after a few calls.

    Threads are removed only if the rest will be busy for less than `LOAD` of the time, and added only if they were busy
    for more, so a removed thread is not added back.
    """
    if seen.waited > WAITS:
        return _more(now, seen, most_workers)
    return _less(now, seen) if seen.waited < CONTENT else now


def _more(now: Setting, seen: Observation, most_workers: int) -> Setting:
    """Add threads if they are hardly ever idle; otherwise prefetch one more batch, since a slow one holds them up."""
    if seen.busy < LOAD * now.workers:
        return now._replace(ahead=min(MOST_AHEAD, now.ahead + 1))
    needed = math.ceil(now.workers / max(1 - seen.waited, 0.01))
    return now._replace(workers=min(most_workers, max(needed, now.workers + 1)))


def _less(now: Setting, seen: Observation) -> Setting:
    needed = max(1, math.ceil(seen.busy / LOAD))
    if needed < now.workers:
        return now._replace(workers=needed)
    spare = seen.ready >= LEAST_AHEAD and now.ahead > LEAST_AHEAD
    return now._replace(ahead=now.ahead - 1) if spare else now
