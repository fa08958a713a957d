"""What a plan consists of: the next status and the few acts that follow from it; it decides nothing itself."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from resnetboost_operator import failures
from resnetboost_operator.manifests import gang
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import World
from resnetboost_operator.status import Status

# Survivors of a broken gang hang in a collective and have nothing left to save.
BROKEN_GANG_GRACE_SECONDS = 5
# Attempts that ended otherwise: their ranks may still save.
WHOLE_GANG_ENDS = frozenset(verdict.name for verdict in (failures.DISRUPTED, failures.INTERRUPTED, failures.DEADLINE))

Manifest = dict[str, Any]


class Deletion(msgspec.Struct, frozen=True):
    """A pod to delete: this very one (`uid`), not a later one of the same name. No grace: do not wait for kubelet."""

    name: str
    uid: str
    grace_seconds: int


class Annotation(msgspec.Struct, frozen=True):
    """A pod to annotate: this very one (`uid`)."""

    name: str
    uid: str
    key: str
    value: str


class Event(msgspec.Struct, frozen=True):
    """Something a user should read in `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Plan(msgspec.Struct, frozen=True):
    """What should be: `status` is written first, then pods are deleted, then objects created, then pods annotated.

    `obsolete` selects, by labels, config maps and services nobody needs any more. `expire`: the job itself has had its
    time and goes. `wake_seconds`: when time alone may change the answer. `poll`: the pod to ask for progress, after
    `poll_seconds`.
    """

    status: Status
    create: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    events: tuple[Event, ...] = ()
    annotate: tuple[Annotation, ...] = ()
    obsolete: str = ""
    expire: bool = False
    wake_seconds: float | None = None
    poll: PodView | None = None
    poll_seconds: float = 0.0


def remove(world: World, status: Status, pods: Sequence[PodView]) -> tuple[Deletion, ...]:
    """Deletions of pods that nobody deletes yet; `status` is the one that is written before.

    Pods of a lost node would stay for ever (training-operator #2185), so nobody waits for its kubelet. Their processes
    may still run there; what they write goes under their own attempt, where nobody reads it any more.
    """
    lost = world.lost_nodes
    abandoned = [Deletion(pod.name, pod.uid, 0) for pod in pods if pod.node in lost]
    others = [pod for pod in pods if pod.node not in lost and not pod.deleting]
    return (*abandoned, *(Deletion(pod.name, pod.uid, _grace_seconds(pod, status)) for pod in others))


def _grace_seconds(pod: PodView, status: Status) -> int:
    """From the record of the pod's attempt, so that a deletion that is decided again is the same."""
    record = next((found for found in status.attempts if found.attempt == pod.attempt), None)
    whole = record is None or record.reason in WHOLE_GANG_ENDS
    return gang.TERMINATION_GRACE_SECONDS if whole else BROKEN_GANG_GRACE_SECONDS


def sooner(*seconds: float | None) -> float | None:
    """The first of the times that are known."""
    return min((found for found in seconds if found is not None), default=None)
