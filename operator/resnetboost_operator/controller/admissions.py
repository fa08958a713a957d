"""Admissions and evictions of a job by its queue, found by comparing two of its statuses. Pure."""

import msgspec

from resnetboost_api.status import Condition, Status
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
# The user's own doing, which is no eviction.
_SUSPENDED = ("Suspending", "Suspended")


class Admission(msgspec.Struct, frozen=True):
    """A job was admitted after so many seconds in its queue; 0 if it was never seen to wait."""

    queued_seconds: float


class Eviction(msgspec.Struct, frozen=True):
    """A job lost its admission, for one of REASONS."""

    reason: str


def change(before: Status, after: Status) -> Admission | Eviction | None:
    """What the queue did to the job between two of its statuses; None if nothing."""
    old, new = statuses.condition(before, ADMITTED), statuses.condition(after, ADMITTED)
    was, admitted = statuses.is_true(before, ADMITTED), statuses.is_true(after, ADMITTED)
    if new is None or was == admitted:
        return None
    if admitted:
        return Admission(_seconds(old, new))
    if statuses.is_terminal(after) or new.reason in _SUSPENDED:
        return None
    return Eviction(_bounded(new.reason))


def _seconds(old: Condition | None, new: Condition) -> float:
    """Time between the transitions of two conditions; 0 without the first, or if the clock was set back."""
    if old is None:
        return 0.0
    return max(0.0, pods.seconds(new.last_transition_time) - pods.seconds(old.last_transition_time))


def _bounded(reason: str) -> str:
    """The reason as one of REASONS: it becomes a label of a metric."""
    if reason.startswith(DEACTIVATED):
        return DEACTIVATED
    return reason if reason in REASONS else OTHER
