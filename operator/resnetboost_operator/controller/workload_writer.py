"""Writes the Workloads of jobs, which Kueue reads, as plans decide."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from resnetboost_operator.controller.events import EventRecorder
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable
from resnetboost_operator.kubeclient.resources import WORKLOAD_STATUS, WORKLOADS
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.planning.actions import Event, WorkloadWrite

# A webhook or a quota may change its mind; somebody has to grant a missing right.
REFUSED = Backoff(first_seconds=1.0, most_seconds=60.0)

# So many of the passes that may run at once (workqueue.LIMIT) may wait for Kueue's webhook: the others are for jobs
# that need nothing of it.
_AT_ONCE = 24
_BUSY_SECONDS = 1.0

# A pass waits for the response, for longer than for that of Kueue's webhook (10 s).
_RETRIES = RetryPolicy(tries=2, timeout_seconds=15.0)

_decode = msgspec.json.Decoder(dict[str, Any])


class _Refusal(msgspec.Struct, frozen=True):
    """The last refusal of a kind of write: the same kind is not tried again before `until` (monotonic)."""

    words: str
    failures: int
    until: float


class WorkloadWriter:
    """Writes Workloads and applies the responses to the store. What a write was decided for is its precondition."""

    def __init__(self, client: Client, store: Store, recorder: EventRecorder) -> None:
        self._client = client
        self._store = store
        self._recorder = recorder
        self._refusals: dict[str, dict[str, _Refusal]] = {}
        self._in_flight = 0

    async def write(self, record: JobRecord, writes: Sequence[WorkloadWrite]) -> float | None:
        """Write; returns the seconds until a write that was refused or put off may be tried again, None without any.

        A write without an answer is tried again like a refused one: where Kueue's webhook is down, the gangs that it
        has admitted go on, and the rest of a pass does not wait for it.
        Raises `Conflict` if the Workload changed or is gone.
        """
        refusals = self._refusals.pop(record.uid, {})
        kept: dict[str, _Refusal] = {write.verb: refusals[write.verb] for write in writes if write.verb in refusals}
        if kept:  # of a kind of write that is not wanted any more nothing is remembered
            self._refusals[record.uid] = kept
        for write in writes:
            refusal = kept.get(write.verb)
            if refusal is not None and time.monotonic() < refusal.until:
                continue
            if self._in_flight >= _AT_ONCE:
                return _BUSY_SECONDS
            await self._try(record, write, refusal)
        waits = [refusal.until - time.monotonic() for refusal in self._refusals.get(record.uid, {}).values()]
        return max(0.0, min(waits)) if waits else None

    def obstacle(self, uid: str) -> str:
        """Why that job's Workload cannot be created, for messages; '' if it can."""
        refusal = self._refusals.get(uid, {}).get("create")
        return refusal.words if refusal is not None else ""

    def forget(self, uid: str) -> None:
        """Forget a job."""
        self._refusals.pop(uid, None)

    async def _try(self, record: JobRecord, write: WorkloadWrite, earlier: _Refusal | None) -> None:
        self._in_flight += 1
        try:
            words = await self._refused(record, write)
        finally:
            self._in_flight -= 1
        refusals = self._refusals.setdefault(record.uid, {})
        if words:
            failures = earlier.failures + 1 if earlier is not None else 1
            refusals[write.verb] = _Refusal(words, failures, time.monotonic() + REFUSED.delay_seconds(failures))
            if earlier is None or earlier.words != words:
                self._recorder.record(record, (Event("Warning", "WorkloadRefused", words),))
        else:
            refusals.pop(write.verb, None)
        if not refusals:
            del self._refusals[record.uid]

    async def _refused(self, record: JobRecord, write: WorkloadWrite) -> str:
        """Write once. Returns why the API server refuses it, or ''."""
        try:
            await self._write(record, write)
        except AlreadyExists:
            return await self._inspect_existing(record, write.name)
        except Refused as error:
            return error.words
        except Unavailable as error:
            return str(error)
        except NotFound as error:
            raise Conflict(str(error)) from error
        return ""

    async def _write(self, record: JobRecord, write: WorkloadWrite) -> None:
        namespace, name, body = record.namespace, write.name, write.body
        match write.verb:
            case "create":
                answer = await self._client.request("create", WORKLOADS, namespace, body=body, retries=_RETRIES)
            case "patch":
                answer = await self._client.request("patch", WORKLOADS, namespace, name, body=body, retries=_RETRIES)
            case "patch-status":
                answer = await self._client.request(
                    "patch", WORKLOAD_STATUS, namespace, name, body=body, retries=_RETRIES
                )
            case "delete":
                options = {"preconditions": {"uid": body["metadata"]["uid"]}, "propagationPolicy": "Background"}
                await self._client.request("delete", WORKLOADS, namespace, name, body=options, retries=_RETRIES)
                return  # the watch reports its end: Kueue's finalizer may take its time
        self._store.workloads.apply_response(_decode.decode(answer))

    async def _inspect_existing(self, record: JobRecord, name: str) -> str:
        """Take over the Workload that this job had before a crash. Returns what is wrong with a foreign one, or ''."""
        try:
            found = _decode.decode(await self._client.request("get", WORKLOADS, record.namespace, name))
        except NotFound:
            return f"Workload {name} was still going"
        self._store.workloads.apply_response(found)
        if self._store.workload_of(record) is not None:
            return ""
        return f"Workload {name} exists and is not this job's: delete it, or rename the job"
