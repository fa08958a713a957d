"""How many threads should make batches, and how many batches ahead, by what was measured; it starts and stops nothing.

What threads are busy with says how many of them are needed, so one look is enough and nothing has to be tried: the rule
of DS2 (Kalavri et al. 2018, OSDI, section 3).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WAITS = 0.05  # share of time: training that waits for more of it is given more
CONTENT = 0.01  # training that waits for less may be given less; between the two nothing changes
LOAD = 0.8  # share of time that a thread may work, so that an uneven batch finds one free
LEAST_AHEAD, MOST_AHEAD = 2, 8  # batches in the making while one is used, each as large as those on the device
_OUTLIER = 10  # usual steps; a longer one had an evaluation or a compiler in it


class Setting(NamedTuple):
    """Threads that may work at once, and batches in the making while one is used."""

    workers: int
    ahead: int


class Take(NamedTuple):
    """Training asked for a batch and was given it, in seconds of one clock; others were `ready` behind it then.

    `worked` is how many seconds all threads have worked so far, added up.
    """

    asked: float
    given: float
    worked: float
    ready: int


class Observation(NamedTuple):
    """Of some steps: share of time waited, threads at work on average, and the least that was ready behind a batch."""

    waited: float
    busy: float
    ready: int


def observed(takes: Sequence[Take]) -> Observation:
    """What happened between the first and the last of at least two takes."""
    asked, given = np.array([take.asked for take in takes[1:]]), np.array([take.given for take in takes])
    waited, computed = given[1:] - asked, asked - given[:-1]
    usual = float(np.median(np.diff(given)))
    seconds = float(np.minimum(computed, _OUTLIER * usual).sum() + waited.sum())
    busy = (takes[-1].worked - takes[0].worked) / seconds
    return Observation(float(waited.sum()) / seconds, busy, min(take.ready for take in takes[1:]))


def tuned(now: Setting, seen: Observation, most_workers: int) -> Setting:
    """What to work by next. As long as the same work brings the same times it comes to rest after a few looks.

    Threads are taken away only where the rest will be at work for less than `LOAD` of the time, and added only where
    they were for more: so what was taken away is never what is then missing.
    """
    if seen.waited > WAITS:
        return _more(now, seen, most_workers)
    return _less(now, seen) if seen.waited < CONTENT else now


def _more(now: Setting, seen: Observation, most_workers: int) -> Setting:
    """Threads that are hardly ever idle are too few; others wait for a place in the queue, or for a slow batch."""
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
