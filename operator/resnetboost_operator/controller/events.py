"""Records Kubernetes Events about jobs, in the background."""

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any

from resnetboost_api import names
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.kubeclient.client import Client, RetryPolicy
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.resources import EVENTS
from resnetboost_operator.observed import pods
from resnetboost_operator.planning.actions import Event

logger = logging.getLogger(__name__)

MESSAGE_LIMIT = 1024  # the API server's
_RETRIES = RetryPolicy(tries=3, timeout_seconds=10.0)
# Hundreds of jobs may begin at once; each request in flight has a connection, and events can wait.
IN_FLIGHT = 8


class EventRecorder:
    """Posts events in the background, in order per call. `identity` is the reporting instance."""

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    def record(self, job: JobRecord, events: Sequence[Event]) -> None:
        """Log and post events about the job."""
        for event in events:
            logger.info("%s: %s", event.reason, event.message)
        if events:
            task = asyncio.create_task(self._post(job, events, time.time()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float) -> None:
        """Wait up to `seconds` for events in flight."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _post(self, job: JobRecord, events: Sequence[Event], now: float) -> None:
        for event in events:
            try:
                body = manifest(job, event, self._identity, now)
                await self._client.request(
                    "create", EVENTS, job.namespace, body=body, retries=_RETRIES, slots=self._slots
                )
            except ApiError as error:
                logger.info("event %s was not posted: %s", event.reason, error)


def manifest(job: JobRecord, event: Event, identity: str, now: float) -> dict[str, Any]:
    """A core/v1 Event about the job; `now` in unix seconds."""
    moment = pods.timestamp(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
            "resourceVersion": str(job.version),
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MESSAGE_LIMIT],
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "reportingInstance": identity[:128],
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
