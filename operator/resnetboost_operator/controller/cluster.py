"""The only writer to the API server beside the lease's: one method for each thing a plan may ask for."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from resnetboost_operator.controller import jobs
from resnetboost_operator.controller.creation import Manifest
from resnetboost_operator.controller.creation_pool import Gangs, Standing
from resnetboost_operator.controller.deletion import Removal
from resnetboost_operator.controller.events import Events
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import COLLECTION, Client
from resnetboost_operator.kubeclient.errors import Conflict, NotFound
from resnetboost_operator.kubeclient.resources import CONFIG_MAPS, JOB_STATUS, JOBS, PODS, SERVICES
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning.actions import Annotation, Deletion, Event

# As many as a small gang has, or large ones would hold up everybody else's requests.
ANNOTATIONS_IN_FLIGHT = 64

_decode = msgspec.json.Decoder(dict[str, Any])


class JobGone(Exception):
    """The job was deleted; the watch will say so too."""


class Cluster:
    """Writes what plans decide. What the answers say enters the store. Every method may raise one of `apierrors`.

    Nothing here needs a lock or a memory: status writes are for one version of the job, deletions for one uid or one
    attempt of one job, and names are taken only once.
    """

    def __init__(self, client: Client, store: Store, identity: str, changed: Callable[[str], None]) -> None:
        self._client = client
        self._store = store
        self._gangs = Gangs(client, store, self._still_wants_gang, changed)
        self._removal = Removal(client, store, changed)
        self._events = Events(client, identity)
        self._slots = asyncio.Semaphore(ANNOTATIONS_IN_FLIGHT)
        self._stopping = False

    async def write_status(self, record: JobRecord) -> JobRecord:
        """Write the record's status if the job is still of its version; returns the job as it is then.

        Raises `Conflict` if it is not, `JobGone` if there is no such job.
        """
        body = jobs.with_status(record)
        try:
            answer = await self._client.request("update", JOB_STATUS, record.namespace, record.name, body=body)
        except NotFound as error:
            raise JobGone from error
        written = _decode.decode(answer)
        self._store.jobs.answered(written)
        return self._store.read_job(written)

    def remove(self, record: JobRecord, deletions: Sequence[Deletion], pods: Sequence[PodView]) -> None:
        """Begin to delete these of the job's pods; does not wait."""
        self._removal.remove(record, deletions, pods)

    def create(self, record: JobRecord, manifests: Sequence[Manifest]) -> Standing:
        """Begin to create these objects, all that the job's current attempt lacks; does not wait.

        Pods that came while the status was written are not asked for again.
        """
        there = {pod.name for pod in self._store.pods_of(record)}
        missing = [found for found in manifests if found["kind"] != "Pod" or found["metadata"]["name"] not in there]
        return self._gangs.want(record, missing)

    def creates(self, uid: str) -> bool:
        """Whether objects of that job are being created."""
        return self._gangs.busy(uid)

    def obstacle(self, uid: str) -> str:
        """Why that job's objects cannot be created, in words for people; '' if they can."""
        return self._gangs.obstacle(uid)

    def invalid(self, uid: str) -> bool:
        """Whether the API server will never take one of that job's objects."""
        return self._gangs.invalid(uid)

    def forget(self, uid: str) -> None:
        """Create nothing more for that job."""
        self._gangs.forget(uid)

    async def annotate(self, record: JobRecord, wanted: Sequence[Annotation]) -> None:
        """Annotate these of the job's pods, many at once; one that is gone, or another by now, needs it no more."""
        done = await asyncio.gather(*(self._annotate(record, found) for found in wanted), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _annotate(self, record: JobRecord, wanted: Annotation) -> None:
        body = {"metadata": {"uid": wanted.uid, "annotations": {wanted.key: wanted.value}}}
        with contextlib.suppress(NotFound, Conflict):
            answer = await self._client.request(
                "patch", PODS, record.namespace, wanted.name, body=body, slots=self._slots
            )
            self._store.pod_answered(_decode.decode(answer))

    async def clean(self, record: JobRecord, selector: str) -> None:
        """Delete the config maps and services that the labels select."""
        for resource in (CONFIG_MAPS, SERVICES):
            query = {"labelSelector": selector}
            await self._client.request("deletecollection", resource, record.namespace, query=query, patience=COLLECTION)

    async def expire(self, record: JobRecord) -> None:
        """Delete that very version of the job; what it owns follows.

        Raises `Conflict` if it has changed: somebody may want to keep it. Raises `JobGone` if there is no such job.
        """
        preconditions = {"uid": record.uid, "resourceVersion": str(record.version)}
        body = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self._client.request("delete", JOBS, record.namespace, record.name, body=body)
        except NotFound as error:
            raise JobGone from error

    def tell(self, record: JobRecord, events: Sequence[Event]) -> None:
        """Post events about the job; does not wait."""
        self._events.tell(record, events)

    def stop(self) -> None:
        """Begin no further creation: a successor goes on with what is missing."""
        self._stopping = True

    async def close(self, seconds: float) -> None:
        """Leave what is under way to the API server, but wait so long for events."""
        await self._events.close(seconds)
        await self._gangs.close()
        await self._removal.close()

    def _still_wants_gang(self, record: JobRecord) -> bool:
        """Whether that attempt is still to have its objects; a pass that knows better may come a moment late."""
        known = self._store.jobs.get(record.uid)
        if self._stopping or known is None or known.deleting or known.job is None:
            return False
        same = (known.status.stage, known.status.attempt) == (record.status.stage, record.status.attempt)
        return same and not known.job.spec.run_policy.suspend
