"""Calls one tracker in a thread of its own, so that training never waits for it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from resnetboost_trainer.tracking.redaction import redacted
from resnetboost_trainer.tracking.tracker import Outcome, Point, Rejected, Run, Tracker

# Points that wait for a tracker; more of them push out the oldest.
CAPACITY = 4096
# Points in one call.
BATCH = 256
# A thread that wakes for each step would take the interpreter from the training each time.
FLUSH_SECONDS = 5.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 60.0
_RETRY_SECONDS_AT_END = 0.25

log = logging.getLogger(__name__)


class Worker:
    """A tracker with its bounded queue and its thread. `drop` counts points that the tracker never gets."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.drop: Callable[[int], object] = lambda points: None
        self._tracker = tracker
        self._points: deque[Point] = deque()
        self._files: deque[tuple[str, Path]] = deque()
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._left = 0  # points in the call that is being made
        self.failing = False
        self._reason = ""  # the last failure

    def start(self, run: Run) -> None:
        """Start the thread, which opens the run."""
        self._thread = threading.Thread(target=self._work, args=(run,), daemon=True, name=f"tracker-{self.name}")
        self._thread.start()

    def add(self, point: Point) -> None:
        """Queue a point. Never blocks."""
        with self._lock:
            full = len(self._points) >= CAPACITY
            if full:
                self._points.popleft()
            self._points.append(point)
        if full:
            self.drop(1)

    def save(self, name: str, path: Path) -> None:
        """Queue a file."""
        self._files.append((name, path))

    def end(self, outcome: Outcome) -> None:
        """Ask the thread to send what is left and the outcome, and to end."""
        self._outcome = outcome
        self._ending.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread at most that long, and log what is lost."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            lost = self._left + len(self._points)
            parts = ([f"{lost} points"] if lost else []) + [name for name, _ in self._files] + ["the outcome"]
            reason = f" ({self._reason})" if self.failing else ""
            log.warning("tracker %s did not finish in time; not sent: %s%s", self.name, ", ".join(parts), reason)
            self.drop(lost)

    def _work(self, run: Run) -> None:
        self._deliver(lambda: self._tracker.start(run))
        ended = False
        while not ended:
            ended = self._ending.wait(FLUSH_SECONDS)
            while points := self._take():
                self._left = len(points)
                self._deliver(lambda points=points: self._tracker.log(points), self._left)  # type: ignore[misc]
                self._left = 0
            while self._files:
                name, path = self._files.popleft()
                self._deliver(lambda name=name, path=path: self._tracker.save(name, path), 0)  # type: ignore[misc]
        outcome = self._outcome
        assert outcome is not None
        self._deliver(lambda: self._tracker.end(outcome), 0)

    def _take(self) -> list[Point]:
        with self._lock:
            return [self._points.popleft() for _ in range(min(BATCH, len(self._points)))]

    def _deliver(self, call: Callable[[], None], points: int | None = None) -> None:
        """Make a call until it succeeds, or is rejected; without `points` it may not be."""
        seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                call()
            except BaseException as error:  # also a SystemExit is the tracker's own matter
                if isinstance(error, Rejected) and points is not None:
                    log.warning("tracker %s refuses %d points: %s", self.name, points, redacted(str(error)))
                    self.drop(points)
                    return
                self._report(error)
            else:
                self._works()
                return
            self._pause(seconds)
            seconds = min(2 * seconds, LAST_RETRY_SECONDS)

    def _report(self, error: BaseException) -> None:
        """Log the first of several failures."""
        self._reason = redacted(f"{type(error).__name__}: {error}")
        if not self.failing:
            log.warning("tracker %s fails, and is tried again until the end: %s", self.name, self._reason)
        self.failing = True

    def _works(self) -> None:
        if self.failing:
            log.info("tracker %s works again", self.name)
        self.failing = False

    def _pause(self, seconds: float) -> None:
        if self._ending.is_set():
            time.sleep(_RETRY_SECONDS_AT_END)
        else:
            self._ending.wait(seconds)
