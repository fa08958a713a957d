"""Writes plans to the API server: one method per kind of write. Only the lease is written elsewhere."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from resnetboost_api import names
from resnetboost_operator import status as statuses
from resnetboost_operator.controller import jobs
from resnetboost_operator.controller.creation import Manifest
from resnetboost_operator.controller.creation_pool import CreationPool, CreationState
from resnetboost_operator.controller.deletion import PodDeleter
from resnetboost_operator.controller.events import EventRecorder
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.workload_writer import WorkloadWriter
from resnetboost_operator.kubeclient.client import COLLECTION_RETRIES, Client
from resnetboost_operator.kubeclient.errors import Conflict, NotFound
from resnetboost_operator.kubeclient.resources import CONFIG_MAPS, JOB_STATUS, JOBS, POD_GROUPS, PODS, SERVICES
from resnetboost_operator.manifests.launcher_secret import with_token
from resnetboost_operator.manifests.pods_to_create import PodsToCreate
from resnetboost_operator.observed import podfields
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning.actions import Annotation, Deletion, Event, WorkloadWrite

# As many as a new gang has connections for; more would only wait in the API server.
ANNOTATIONS_IN_FLIGHT = 32

_decode = msgspec.json.Decoder(dict[str, Any])


class JobGone(Exception):
    """The job was deleted; its watch event may not have arrived yet."""


class Cluster:
    """Executes the writes of plans and applies the responses to the store. Every method may raise an `ApiError`.

    Writes are safe without locks: a status write names the job's version, a deletion a uid or one attempt of a job, and
    a name can be taken only once. `token`: that of a job's launchers, by the job's uid.
    """

    def __init__(
        self,
        client: Client,
        store: Store,
        identity: str,
        changed: Callable[[str], None],
        token: Callable[[str], bytes],
    ) -> None:
        self._client = client
        self._store = store
        self._token = token
        self._creations = CreationPool(client, store, self._still_wants_gang, changed)
        self._deleter = PodDeleter(client, store, changed)
        self._recorder = EventRecorder(client, identity)
        self._workloads = WorkloadWriter(client, store, self._recorder)
        self._slots = asyncio.Semaphore(ANNOTATIONS_IN_FLIGHT)
        self._stopping = False

    async def write_status(self, record: JobRecord) -> JobRecord:
        """Write the record's status and return the job after the write.

        Raises `Conflict` if the job has another version, `JobGone` if it does not exist.
        """
        body = jobs.with_status(record)
        try:
            answer = await self._client.request("update", JOB_STATUS, record.namespace, record.name, body=body)
        except NotFound as error:
            raise JobGone from error
        written = _decode.decode(answer)
        self._store.jobs.apply_response(written)
        return self._store.read_job(written)

    def remove(self, record: JobRecord, deletions: Sequence[Deletion], pods: Sequence[PodView]) -> None:
        """Start to delete these pods of the job; does not wait."""
        self._deleter.remove(record, deletions, pods)

    async def write_workload(self, record: JobRecord, writes: Sequence[WorkloadWrite]) -> float | None:
        """Write the job's Workload; returns the seconds until a refused write is due again, None if there is none.

        Raises `Conflict` if the Workload changed or is gone.
        """
        return await self._workloads.write(record, writes)

    def create(
        self, record: JobRecord, manifests: Sequence[Manifest], pods: PodsToCreate | None = None
    ) -> CreationState:
        """Start to create these objects, all that the job's current attempt lacks; does not wait.

        Pods that appeared while the status was written are not created again. Secrets get the job's token.
        """
        there = {pod.name for pod in self._store.pods_of(record)}
        token = self._token(record.uid)
        manifests = [with_token(found, token) if found["kind"] == "Secret" else found for found in manifests]
        missing = [found for found in manifests if found["kind"] != "Pod" or found["metadata"]["name"] not in there]
        named = pods.by_name() if pods is not None else {}
        for name in there:
            named.pop(name, None)
        return self._creations.ensure(record, missing, named)

    def creates(self, uid: str) -> bool:
        """True while objects of that job are being created."""
        return self._creations.busy(uid)

    def queues(self, uid: str) -> bool:
        """True while objects of that job wait until a request for them may begin."""
        return self._creations.queued(uid)

    def obstacle(self, uid: str) -> str:
        """Why that job's objects or its Workload cannot be created, for messages; '' if they can."""
        return self._creations.obstacle(uid) or self._workloads.obstacle(uid)

    def invalid(self, uid: str) -> bool:
        """True if one of that job's objects fails the API server's validation."""
        return self._creations.invalid(uid)

    def forget(self, uid: str) -> None:
        """Stop creating objects of that job."""
        self._creations.forget(uid)
        self._workloads.forget(uid)

    async def annotate(self, record: JobRecord, wanted: Sequence[Annotation]) -> None:
        """Annotate pods of the job, many at once; skip pods that are gone or were replaced."""
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
            self._store.apply_pod_response(podfields.decode(answer))

    async def clean(self, record: JobRecord, selector: str) -> None:
        """Delete the config maps and services that the label selector matches."""
        for resource in (CONFIG_MAPS, SERVICES):
            query = {"labelSelector": selector}
            await self._client.request(
                "deletecollection", resource, record.namespace, query=query, retries=COLLECTION_RETRIES
            )

    async def clean_groups(self, record: JobRecord, groups: Sequence[PodGroupView]) -> None:
        """Delete these PodGroups of the job: one request for each API."""
        for api in {group.api: None for group in groups}:
            attempts = sorted({group.attempt for group in groups if group.api == api})
            listed = ",".join(str(attempt) for attempt in attempts)
            query = {"labelSelector": f"{names.LABEL_JOB_UID}={record.uid},{names.LABEL_ATTEMPT} in ({listed})"}
            with contextlib.suppress(NotFound):  # an API that is not served any more has no groups either
                await self._client.request(
                    "deletecollection", POD_GROUPS[api], record.namespace, query=query, retries=COLLECTION_RETRIES
                )

    async def expire(self, record: JobRecord) -> None:
        """Delete the job, and with it what it owns, if it still has this version.

        Raises `Conflict` if it has changed, since its user may want to keep it, and `JobGone` if it does not exist.
        """
        preconditions = {"uid": record.uid, "resourceVersion": str(record.version)}
        body = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self._client.request("delete", JOBS, record.namespace, record.name, body=body)
        except NotFound as error:
            raise JobGone from error

    def record_events(self, record: JobRecord, events: Sequence[Event]) -> None:
        """Record events about the job; does not wait."""
        self._recorder.record(record, events)

    def stop(self) -> None:
        """Start no further creation; the next leader creates what is missing."""
        self._stopping = True

    async def close(self, seconds: float) -> None:
        """Cancel requests in flight; wait up to `seconds` for events."""
        await self._recorder.close(seconds)
        await self._creations.close()
        await self._deleter.close()

    def _still_wants_gang(self, record: JobRecord) -> bool:
        """True if that attempt is still current: its objects may be outdated before the next pass says so."""
        known = self._store.jobs.get(record.uid)
        if self._stopping or known is None or known.deleting or known.job is None:
            return False
        same = _pods_of(known) == _pods_of(record)
        return same and not known.job.spec.run_policy.suspend


def _pods_of(record: JobRecord) -> tuple[str, int]:
    """Stage and attempt number of the pods that the job's status is about."""
    return record.status.stage, statuses.pods_attempt(record.status)
