"""All trackers of a rank behind one object, which does nothing without any."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import Counter

from resnetboost_trainer.metrics.csv_log import EVALUATION_COLUMNS
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.tracking.tracker import Outcome, Point, Run
from resnetboost_trainer.tracking.worker import Worker

# How long the end of an attempt waits for its trackers; for those that fail already, only for another try.
END_SECONDS, END_SECONDS_IF_FAILING = 5.0, 1.0
# Columns of a row that is sent whatever its step.
_ALWAYS = (*EVALUATION_COLUMNS, "diverged", "rolled_back_from")
_NOT_VALUES = ("step", "time")


class Tracking:
    """Sends rows of metrics.csv and files to the trackers."""

    def __init__(self, workers: Iterable[Worker] = (), every_steps: int = 1, last_stage: bool = False) -> None:
        """`last_stage`: the job is complete if this attempt succeeds."""
        self._workers = tuple(workers)
        self._every_steps, self._last_stage = every_steps, last_stage

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trackers."""
        return tuple(worker.name for worker in self._workers)

    def start(self, run: Run) -> None:
        """Start the trackers on an attempt."""
        for worker in self._workers:
            worker.start(run)

    def count(self, dropped: Mapping[str, Counter]) -> None:
        """Count the points that a tracker never gets, by its name."""
        for worker in self._workers:
            worker.drop = dropped[worker.name].inc

    def row(self, row: Row) -> None:
        """Send a row of metrics.csv if its step is due."""
        if not self._workers or not self._due(row):
            return
        values = {name: float(value) for name, value in row.items() if value is not None and name not in _NOT_VALUES}
        point = Point(int(row["step"] or 0), row.get("time") or time.time(), values)
        for worker in self._workers:
            worker.add(point)

    def save(self, name: str, path: Path) -> None:
        """Send a file under that name."""
        for worker in self._workers:
            worker.save(name, path)

    def end(self, name: str, message: str) -> None:
        """Send what is left and the attempt's outcome, for a few seconds at most."""
        outcome = Outcome(name, message, complete=self._last_stage and name == "Succeeded")
        for worker in self._workers:
            worker.end(outcome)
        until = time.monotonic() + END_SECONDS
        for worker in self._workers:
            left = max(0.0, until - time.monotonic())
            worker.join(min(left, END_SECONDS_IF_FAILING) if worker.failing else left)

    def _due(self, row: Row) -> bool:
        return int(row["step"] or 0) % self._every_steps == 0 or any(name in row for name in _ALWAYS)
