"""The actions of a plan: the status to write, objects to create, pods to delete or annotate, events to record."""

from typing import Any, Literal

import msgspec

from resnetboost_api.launcher import StartAttempt
from resnetboost_api.status import Status
from resnetboost_operator.manifests.pods_to_create import PodsToCreate
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.observed.pods import PodView

Manifest = dict[str, Any]


class Deletion(msgspec.Struct, frozen=True):
    """A pod to delete, by uid: never a later one of the same name. `grace_seconds` 0: do not wait for kubelet."""

    name: str
    uid: str
    grace_seconds: int


class Annotation(msgspec.Struct, frozen=True):
    """A pod to annotate, by uid: never a later one of the same name."""

    name: str
    uid: str
    key: str
    value: str


class WorkloadWrite(msgspec.Struct, frozen=True):
    """A write of the job's Workload (Kueue's). `body`: the manifest to create, or a merge patch with its preconditions.

    A patch names the uid and resourceVersion it was decided for (`metadata`): the API server refuses it for any other,
    and the next plan decides anew. Of one to delete `body` has only `metadata.uid`, the precondition.
    """

    verb: Literal["create", "patch", "patch-status", "delete"]
    name: str
    body: Manifest


class Event(msgspec.Struct, frozen=True):
    """A Kubernetes event for users, shown by `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Plan(msgspec.Struct, frozen=True):
    """Actions in order: write `status`, delete pods, write Kueue's Workload, create `objects`, then `pods`, annotate
    pods.

    `obsolete`: label selector of shared objects no longer needed; `obsolete_groups`: PodGroups without pods. `expire`:
    delete the job itself, its time to live is over. `wake_seconds`: plan again after that time even if nothing happens.
    `poll`: the pod to poll for progress, after `poll_seconds`. `launcher`: the pod to whose launcher a connection is
    kept; `command`: what it is told, once the status is written.
    """

    status: Status
    objects: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    events: tuple[Event, ...] = ()
    pods: PodsToCreate | None = None
    annotate: tuple[Annotation, ...] = ()
    workload: tuple[WorkloadWrite, ...] = ()
    obsolete: str = ""
    obsolete_groups: tuple[PodGroupView, ...] = ()
    expire: bool = False
    wake_seconds: float | None = None
    poll: PodView | None = None
    poll_seconds: float = 0.0
    launcher: PodView | None = None
    command: StartAttempt | None = None

    @property
    def creates(self) -> bool:
        """Whether anything is to be created."""
        return bool(self.objects) or self.pods is not None

    @property
    def create(self) -> tuple[Manifest, ...]:
        """The manifests of everything to create, in order."""
        found = self.pods
        return self.objects if found is None else (*self.objects, *map(found.build, found.indexes))


def sooner(*seconds: float | None) -> float | None:
    """The smallest of the times that are not None."""
    return min((found for found in seconds if found is not None), default=None)
