"""Admissions and evictions of a job by its queue, found by comparing two of its statuses. Pure."""

import msgspec

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.status import ADMITTED

# Kueue's reasons of the condition Evicted. Deactivated has variants, such as DeactivatedDueToAdmissionCheck.
OTHER, DEACTIVATED = "Other", "Deactivated"
REASONS = (
    "Preempted",
    "NodeFailures",
    "PodsReadyTimeout",
    "AdmissionCheck",
    "ClusterQueueStopped",
    "LocalQueueStopped",
    DEACTIVATED,
    OTHER,
)
# Phases of a job that its queue stopped: it saves and leaves, and then waits. In others it goes on without a queue, as
# where Kueue was removed.
_STOPPED = ("Suspending", "Queued")
_BY_USER = "Suspended"


class Admission(msgspec.Struct, frozen=True):
    """A job was admitted after so many seconds in its queue; 0 if it was never seen to wait."""

    queued_seconds: float


class Eviction(msgspec.Struct, frozen=True):
    """A job lost its admission, for one of REASONS."""

    reason: str


def change(before: Status, after: Status) -> Admission | Eviction | None:
    """What the queue did to the job between two of its statuses; None if nothing."""
    was, admitted = statuses.is_true(before, ADMITTED), statuses.condition(after, ADMITTED)
    if admitted is None or was == (admitted.status == "True"):
        return None
    if not was:
        return Admission(_seconds(statuses.queued_since(before), admitted.last_transition_time))
    if after.phase not in _STOPPED or admitted.reason == _BY_USER:
        return None
    return Eviction(_bounded(admitted.reason))


def _seconds(start: str | None, end: str) -> float:
    """Seconds between two times; 0 without the first, or if the clock was set back."""
    return max(0.0, pods.seconds(end) - pods.seconds(start)) if start is not None else 0.0


def _bounded(reason: str) -> str:
    """The reason as one of REASONS: it becomes a label of a metric."""
    if reason.startswith(DEACTIVATED):
        return DEACTIVATED
    return reason if reason in REASONS else OTHER
