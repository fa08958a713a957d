"""Deletes pods in the background: whole attempts by a few collection deletes each, other pods one by one."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import COLLECTION_RETRIES, Client
from resnetboost_operator.kubeclient.errors import ApiError, Conflict, NotFound
from resnetboost_operator.kubeclient.resources import PODS
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning.actions import Deletion
from resnetboost_operator.planning.collection_delete import CollectionDelete, group

logger = logging.getLogger(__name__)

IN_FLIGHT = 24
# The API server deletes the pods of one request in sequence, so a large gang is split into parallel requests.
SWEEP_PODS = 64


class PodDeleter:
    """Deletes pods without waiting, since a thousand pods take the API server seconds.

    The store expects the deletions (`Store.expect_deletions`). If one fails, `changed` is called with the job's uid,
    and the next pass decides again.
    """

    def __init__(self, client: Client, store: Store, changed: Callable[[str], None]) -> None:
        self._client = client
        self._store = store
        self._changed = changed
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    def remove(self, job: JobRecord, wanted: Sequence[Deletion], pods: Sequence[PodView]) -> None:
        """Start the deletions that are not in progress yet; `pods` are all pods of the job."""
        new = [found for found in wanted if not self._store.is_deletion_expected(found)]
        sweeps, singles = group(new, pods)
        by_name = {found.name: found for found in new}
        for part in (part for sweep in sweeps for part in _parts(sweep, pods)):
            self._begin(job, [by_name[name] for name in part.pods], self._delete_collection(job, part))
        if singles:
            self._begin(job, singles, self._delete_each(job, singles))

    async def close(self) -> None:
        """Cancel the requests; the API server finishes what it has received."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, job: JobRecord, going: Sequence[Deletion], request: Coroutine[Any, Any, None]) -> None:
        self._store.expect_deletions(going)
        task = asyncio.create_task(self._finish(job, going, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, job: JobRecord, going: Sequence[Deletion], request: Coroutine[Any, Any, None]) -> None:
        try:
            await request
        except ApiError as error:
            logger.warning("%d pods are not deleted yet; trying again: %s", len(going), error)
            self._store.forget_deletions(going)
            self._changed(job.uid)

    async def _delete_collection(self, job: JobRecord, sweep: CollectionDelete) -> None:
        query = {"labelSelector": sweep.selector}
        if sweep.field_selector:
            query["fieldSelector"] = sweep.field_selector
        body = {"gracePeriodSeconds": sweep.grace_seconds}
        await self._client.request(
            "deletecollection", PODS, job.namespace, query=query, body=body, retries=COLLECTION_RETRIES
        )

    async def _delete_each(self, job: JobRecord, singles: Sequence[Deletion]) -> None:
        done = await asyncio.gather(*(self._delete(job, found) for found in singles), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _delete(self, job: JobRecord, deletion: Deletion) -> None:
        """Delete the pod with that uid; do nothing if it is gone or was replaced."""
        body = {"gracePeriodSeconds": deletion.grace_seconds, "preconditions": {"uid": deletion.uid}}
        async with self._slots:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.request("delete", PODS, job.namespace, deletion.name, body=body)


def _parts(sweep: CollectionDelete, pods: Sequence[PodView]) -> list[CollectionDelete]:
    """Split a collection delete into requests of about equal size."""
    count = -(-len(sweep.pods) // SWEEP_PODS)
    if count == 1:
        return [sweep]
    index = {pod.name: pod.index for pod in pods}
    return [_part(sweep, sweep.pods[first::count], index) for first in range(count)]


def _part(sweep: CollectionDelete, pods: tuple[str, ...], index: Mapping[str, int]) -> CollectionDelete:
    indexes = ",".join(str(index[name]) for name in pods)
    return replace(sweep, selector=f"{sweep.selector},{names.LABEL_INDEX} in ({indexes})", pods=pods)
