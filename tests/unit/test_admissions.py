"""Admissions and evictions are counted once each, whatever else of the status changes with them."""

import pytest
from msgspec.structs import replace

from resnetboost_api.status import Condition, Phase, Status
from resnetboost_operator.controller import admissions
from resnetboost_operator.controller.admissions import Admission, Eviction
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.observed import pods

START = 1_700_000_000.0


def status(admitted: bool | None, reason: str = "", at: float = START, phase: Phase = "Queued") -> Status:
    """A status whose condition Admitted changed at that time; None: of a job without a queue."""
    ended = (Condition("Failed", "True", "Deadline", "", pods.timestamp(at)),) if phase == "Failed" else ()
    if admitted is None:
        return Status(phase=phase, conditions=ended)
    found = Condition("Admitted", str(admitted), reason or "Admitted", "", pods.timestamp(at))  # type: ignore[arg-type]
    return Status(phase=phase, conditions=(found, *ended))


def resumed(at: float) -> Status:
    """A job that waits again after a suspension."""
    found = Condition("Suspended", "False", "Resumed", "", pods.timestamp(at))
    return replace(WAITS, conditions=(*WAITS.conditions, found))


WAITS = status(False, "WaitingForQuota")
RUNS = status(True, phase="Running")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (status(None), WAITS, None),
        (WAITS, status(False, "Inadmissible"), None),
        (WAITS, status(True, at=START + 90), Admission(90)),
        (status(None), status(True, at=START + 90), Admission(0)),
        (WAITS, status(True, at=START - 5), Admission(0)),
        (RUNS, status(True, phase="Restarting"), None),
        (RUNS, status(False, "Preempted", START + 9), Eviction("Preempted")),
        (RUNS, status(False, "DeactivatedDueToAdmissionCheck"), Eviction("Deactivated")),
        (RUNS, status(False, "Anything{else}"), Eviction("Other")),
        (status(False, "Preempted"), status(False, "WaitingForQuota"), None),
        (RUNS, status(False, "Suspended", phase="Suspended"), None),
        (RUNS, status(None, phase="Suspended"), None),
        (RUNS, status(False, "Finished", phase="Failed"), None),
        (RUNS, status(False, "KueueDisabled", phase="Running"), None),
        (RUNS, status(False, "NodeFailures", phase="Suspending"), Eviction("NodeFailures")),
        (status(False, "NotQueued", phase="Running"), status(True, at=START + 90), Admission(0)),
        (resumed(START + 50), status(True, at=START + 90), Admission(40)),
    ],
    ids=[
        "begins to wait",
        "waits on",
        "is admitted",
        "is admitted at once",
        "is admitted by a clock that was set back",
        "restarts and keeps its admission",
        "is preempted",
        "is deactivated for a check",
        "is evicted for a reason that Kueue did not have",
        "waits again",
        "is suspended",
        "is suspended and in no queue",
        "fails",
        "runs without Kueue",
        "is evicted and saves",
        "ran without its queue",
        "was suspended while it waited",
    ],
)
def test_what_a_queue_did(before: Status, after: Status, expected: Admission | Eviction | None) -> None:
    assert admissions.change(before, after) == expected


def test_counts_and_waits_are_exposed_and_every_reason_from_the_start() -> None:
    metrics = Metrics()
    evicted = 'resnetboost_operator_evictions_total{reason="Preempted"}'
    assert f"{evicted} 0.0" in metrics.text().decode()
    for before, after in [
        (status(None), WAITS),
        (WAITS, status(True, at=START + 90)),
        (RUNS, status(False, "Preempted")),
    ]:
        metrics.count_admission(before, after)
    text = metrics.text().decode()
    assert f"{evicted} 1.0" in text
    assert "resnetboost_operator_admissions_total 1.0" in text
    assert "resnetboost_operator_admission_wait_seconds_sum 90.0" in text
