"""Deletions of pods, each with its grace period."""

from collections.abc import Sequence

from resnetboost_api import failures
from resnetboost_api.status import Attempt, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests.pod import TERMINATION_GRACE_SECONDS
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.actions import Deletion

# Survivors of a broken gang hang in a collective and have nothing left to save.
BROKEN_GANG_GRACE_SECONDS = 5
# Attempts that ended otherwise: their ranks may still save.
WHOLE_GANG_ENDS = frozenset(
    found.name for found in (failures.DISRUPTED, failures.INTERRUPTED, failures.DEADLINE, failures.STRAGGLER)
)


def delete(state: ObservedState, status: Status, pods: Sequence[PodView]) -> tuple[Deletion, ...]:
    """Deletions of those of the pods that are not being deleted yet. `status` is the one to be written before.

    Pods of a lost node would stay for ever (training-operator #2185), so they are deleted without waiting for its
    kubelet. Their processes may still run there; what they write goes under their own attempt and is never read again.
    """
    lost = state.lost_nodes
    abandoned = [Deletion(pod.name, pod.uid, 0) for pod in pods if pod.node in lost]
    others = [pod for pod in pods if pod.node not in lost and not pod.deleting]
    return (*abandoned, *(Deletion(pod.name, pod.uid, _grace_seconds(pod, status)) for pod in others))


def _grace_seconds(pod: PodView, status: Status) -> int:
    """By the record of the pod's attempt, so that the same deletion planned again has the same grace period."""
    record = _last_record(pod, status)
    whole = record is None or record.reason in WHOLE_GANG_ENDS
    return TERMINATION_GRACE_SECONDS if whole else BROKEN_GANG_GRACE_SECONDS


def _last_record(pod: PodView, status: Status) -> Attempt | None:
    """The record of the last attempt that used the pod, None while it runs."""
    newest = statuses.pods_attempt(status)
    if pod.attempt == newest:
        return next((found for found in status.attempts if found.attempt == status.attempt), None)
    of_pod = [found for found in status.attempts if pod.attempt <= found.attempt < newest]
    return max(of_pod, key=lambda found: found.attempt, default=None)
