"""Trackers behind their queues: slow, dead, refusing and hostile ones, and what is sent at the end."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prometheus_client import Counter

from resnetboost_trainer.tracking import Outcome, Point, Rejected, Run, Tracker, tracking, worker
from resnetboost_trainer.tracking.tracking import Tracking
from resnetboost_trainer.tracking.worker import CAPACITY, Worker

RUN = Run(job="digits", namespace="default", uid="uid", stage="base", attempt=0, parameters={})


class Recording(Tracker):
    """Records its calls; before each one it calls `before` with the name of the event."""

    def __init__(self, before: Callable[[str], object] = lambda event: None) -> None:
        super().__init__({})
        self.before, self.steps, self.files = before, list[int](), list[str]()
        self.outcome: Outcome | None = None

    def start(self, run: Run) -> None:
        self.before("start")

    def log(self, points: Sequence[Point]) -> None:
        self.before("log")
        self.steps += [point.step for point in points]

    def save(self, name: str, path: Path) -> None:
        self.before("save")
        self.files.append(name)

    def end(self, outcome: Outcome) -> None:
        self.before("end")
        self.outcome = outcome


class Failing:
    """Raises each of these errors once, in the event, and returns from then on."""

    def __init__(self, event: str, *errors: BaseException) -> None:
        self.event, self.errors = event, list(errors)

    def __call__(self, event: str) -> None:
        if event == self.event and self.errors:
            raise self.errors.pop(0)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(worker, "FLUSH_SECONDS", 0.01)


def started(*trackers: Tracker, every_steps: int = 1, last_stage: bool = True) -> tuple[Tracking, dict[str, Counter]]:
    workers = [Worker(f"own-{place}", tracker) for place, tracker in enumerate(trackers)]
    found = Tracking(workers, every_steps, last_stage)
    counter = Counter("dropped", "Dropped.", ("tracker",), registry=None)
    counters = {name: counter.labels(name) for name in found.names}
    found.count(counters)
    found.start(RUN)
    return found, counters


def dropped(counters: dict[str, Counter], place: int = 0) -> float:
    return float(counters[f"own-{place}"]._value.get())


def rows(found: Tracking, *steps: int) -> None:
    for step in steps:
        found.row({"step": step, "time": 1.0, "loss": 2.0, "loss_scale": None})


def test_a_stuck_tracker_keeps_the_newest_points_and_counts_the_others() -> None:
    goes_on = threading.Event()
    stuck, healthy = Recording(lambda event: goes_on.wait()), Recording()
    found, counters = started(stuck, healthy)
    rows(found, *range(1, CAPACITY + 4))
    assert dropped(counters) == 3
    goes_on.set()
    found.end("Succeeded", "")
    assert stuck.steps == list(range(4, CAPACITY + 4))
    assert healthy.outcome == stuck.outcome == Outcome("Succeeded", "", complete=True)


@pytest.mark.parametrize("event", ["start", "log", "save", "end"])
def test_a_call_that_fails_is_repeated_until_it_succeeds(event: str) -> None:
    failing = Failing(event, OSError("no route"), ValueError("a bug"), SystemExit(1))
    tracker = Recording(failing)
    found, counters = started(tracker)
    rows(found, 1, 2, 3)
    found.save("model-card.md", Path("x"))
    found.end("Succeeded", "")
    assert (tracker.steps, tracker.files, dropped(counters)) == ([1, 2, 3], ["model-card.md"], 0)
    assert tracker.outcome is not None
    assert not failing.errors


def test_what_a_tracker_refuses_is_counted_and_does_not_hold_up_the_rest() -> None:
    tracker, both = Recording(Failing("log", Rejected("the run was deleted"))), threading.Event()
    tracker.before = lambda event, failing=tracker.before: (both.wait(), failing(event))  # type: ignore[misc]
    found, counters = started(tracker)
    rows(found, *range(worker.BATCH + 2))
    both.set()
    found.end("Succeeded", "")
    assert tracker.steps == [worker.BATCH, worker.BATCH + 1]
    assert dropped(counters) == worker.BATCH


def test_the_end_does_not_wait_for_a_tracker_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "END_SECONDS", 0.2)
    hanging, healthy = threading.Event(), Recording()
    found, counters = started(Recording(lambda event: hanging.wait()), healthy)
    rows(found, 1, 2)
    found.end("Interrupted", "asked to stop")
    hanging.set()
    assert dropped(counters) == 2
    assert "tracker own-0 did not finish in time; not sent: 2 points, the outcome" in caplog.text
    assert healthy.steps == [1, 2], "a tracker that hangs does not hold up another one"


def test_a_secret_in_an_error_does_not_come_into_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    error = RuntimeError("https://me:pass@tracker:1/ says no to 0123456789abcdef\nTraceback:\x1b[31m red")
    found, _ = started(Recording(Failing("start", error)))
    found.end("Succeeded", "")
    assert "https://***@tracker:1/ says no to *** Traceback:?[31m red" in caplog.text
    assert "0123456789abcdef" not in caplog.text


def test_an_outage_is_logged_once_with_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found, _ = started(Recording(Failing("start", *[OSError("no route")] * 5)))
    found.end("Succeeded", "")
    told = [record.message for record in caplog.records]
    assert told == [
        "tracker own-0 fails, and is tried again until the end: OSError: no route",
        "tracker own-0 works again",
    ]


def test_points_come_every_few_steps_and_with_each_evaluation() -> None:
    tracker = Recording()
    found, _ = started(tracker, every_steps=10, last_stage=False)
    rows(found, *range(1, 25))
    found.row({"step": 25, "time": 1.0, "loss": 2.0, "top1": 0.5})
    found.row({"step": 26, "time": 1.0, "loss": float("nan"), "diverged": 1})
    found.end("Succeeded", "")
    assert tracker.steps == [10, 20, 25, 26]
    assert tracker.outcome == Outcome("Succeeded", "", complete=False), "another stage follows"


def test_a_point_has_the_columns_that_have_a_value() -> None:
    points: list[Point] = []
    tracker = Recording()
    tracker.log = points.extend  # type: ignore[method-assign,assignment]
    found, _ = started(tracker)
    rows(found, 7)
    found.end("Succeeded", "")
    assert points == [Point(7, 1.0, {"loss": 2.0})]
