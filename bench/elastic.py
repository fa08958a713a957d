"""What a job gets done in a week in which nodes break: with `device.minCount` and without. Virtual time.

The operator's own plan runs against the simulated cluster of its tests. A rank is a node. Nodes fail by the rate of
Kokolis et al. (2024, "Revisiting Reliability in Large-Scale Machine Learning Research Clusters"), a mean time to
failure of 7.9 h for 128 nodes of 8 GPUs, and are away for as long as their repair takes. A gang that starts computes
nothing for START_SECONDS; one that fails loses what it did since its last checkpoint; a resize saves first. A step of
n of N ranks takes N / n times as long.
"""

import itertools
import random
import statistics
from typing import Any

from bench.entries import Entry, ratio
from support.scarcedevices import Scarce
from support.simulation import Cluster, job

NODES, LEAST = 32, 16
FAILURES_PER_NODE_DAY = 24 / 7.9 / 128
REPAIR_HOURS = (4, 12, 24)
SPARES = (0, 1)
SEEDS = 10
WEEK = 7 * 86400.0
START_SECONDS, CHECKPOINT_SECONDS = 120.0, 600.0
TICK = 600.0


def measure() -> list[Entry]:
    """The share of an undisturbed week's steps, by repair time and spare nodes."""
    return [_compare(hours, spares) for hours, spares in itertools.product(REPAIR_HOURS, SPARES)]


def _compare(hours: int, spares: int) -> Entry:
    ours, theirs = ([_Week(seed, hours, spares, least).share() for seed in range(SEEDS)] for least in (LEAST, None))
    name = f"elastic_week_repair_{hours}h_spares_{spares}"
    return ratio(name, ours, theirs, "share of steps", f"no minCount: {statistics.median(theirs):.3f}")


class _Week:
    """One week of a job of NODES ranks on as many nodes and some spare ones."""

    def __init__(self, seed: int, repair_hours: int, spares: int, least: int | None) -> None:
        self._chance = random.Random(seed)
        self._repair = repair_hours * 3600.0
        device: dict[str, Any] = {"type": "CPU", "count": NODES} | ({"minCount": least} if least else {})
        policy = {"maxRestarts": 1000, "hangTimeoutSeconds": 86400}
        run_policy = {"startupDeadlineSeconds": 30 * 86400}
        self._found = Scarce(Cluster(job(device=device, failurePolicy=policy, runPolicy=run_policy)), NODES + spares)
        self._begin = self._found.cluster.now
        self._events = sorted(self._failures())
        self._repairs: list[float] = []
        self._done = self._saved = 0.0
        self._attempt, self._trains_from, self._saved_at = -1, 0.0, 0.0

    def share(self) -> float:
        """Steps of the week, as a share of those of an undisturbed one."""
        cluster = self._found.cluster
        while cluster.now < self._begin + WEEK:
            before = self._seen()
            wake = self._found.turn()
            self._look()
            calm = TICK if self._trains() or wake is None else min(max(wake, 1.0), TICK)
            self._advance(1.0 if self._seen() != before else calm)
        return self._done / WEEK

    def _failures(self) -> list[float]:
        """Times at which one of the nodes fails."""
        rate = (NODES + 1) * FAILURES_PER_NODE_DAY / 86400  # as many with a spare node as without
        times = itertools.accumulate(iter(lambda: self._chance.expovariate(rate), None), initial=self._begin)
        return list(itertools.takewhile(lambda time: time < self._begin + WEEK, itertools.islice(times, 1, None)))

    def _advance(self, seconds: float) -> None:
        """Train on until then, or until the next node fails or returns."""
        cluster = self._found.cluster
        end = min([cluster.now + seconds, self._begin + WEEK, *self._events[:1], *self._repairs[:1]])
        if self._trains():
            gone = max(0.0, end - max(cluster.now, self._trains_from)) * self._found.ranks() / NODES
            self._done += gone
            if end - self._saved_at >= CHECKPOINT_SECONDS:
                self._saved, self._saved_at = self._done, end
        cluster.now = end
        if self._repairs and end >= self._repairs[0]:
            self._found.room += 1
            self._repairs.pop(0)
        if self._events and end >= self._events[0]:
            self._events.pop(0)
            self._fail()

    def _fail(self) -> None:
        """A node fails, perhaps one that the job does not use."""
        self._repairs.append(self._found.cluster.now + self._repair)
        place = self._chance.randrange(max(1, self._found.room))
        if self._trains() and place < self._found.ranks():
            self._found.lose(place)
            self._done = self._saved
        else:
            self._found.room -= 1

    def _look(self) -> None:
        """Notice a new attempt that trains: what the one before saved counts."""
        status = self._found.cluster.status
        if status.attempt != self._attempt and self._trains():
            self._attempt, self._saved_at = status.attempt, self._found.cluster.now
            self._trains_from = self._found.cluster.now + START_SECONDS
            self._saved = self._done

    def _trains(self) -> bool:
        return self._found.cluster.status.phase == "Running"

    def _seen(self) -> object:
        status = self._found.cluster.status
        return status.attempt, status.phase, sorted(self._found.cluster.pods)
