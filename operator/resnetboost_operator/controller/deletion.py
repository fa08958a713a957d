"""Deletes pods, whole attempts by a few requests each, in the background; which pods go is not its."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_operator import names
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import COLLECTION, Client
from resnetboost_operator.kubeclient.errors import ApiError, Conflict, NotFound
from resnetboost_operator.kubeclient.resources import PODS
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning import cleanup
from resnetboost_operator.planning.actions import Deletion
from resnetboost_operator.planning.cleanup import Sweep

logger = logging.getLogger(__name__)

IN_FLIGHT = 24
# The API server deletes the pods of one request one after another, so a large gang goes by several requests at once.
SWEEP_PODS = 64


class Removal:
    """Deletes pods. The API server takes seconds over a thousand, and the first places are free before the last.

    So nobody waits for it: the pods count as going (`Store.expect`), and a deletion that fails makes `changed` be
    called with the job's uid, whose next pass decides anew.
    """

    def __init__(self, client: Client, store: Store, changed: Callable[[str], None]) -> None:
        self._client = client
        self._store = store
        self._changed = changed
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    def remove(self, job: JobRecord, wanted: Sequence[Deletion], pods: Sequence[PodView]) -> None:
        """Begin the deletions that are not under way yet; `pods` are all of the job's."""
        new = [found for found in wanted if not self._store.is_expected(found)]
        sweeps, singles = cleanup.grouped(new, pods)
        by_name = {found.name: found for found in new}
        for part in (part for sweep in sweeps for part in _parts(sweep, pods)):
            self._begin(job, [by_name[name] for name in part.pods], self._sweep(job, part))
        if singles:
            self._begin(job, singles, self._delete_each(job, singles))

    async def close(self) -> None:
        """Wait for nothing any more; what was asked for goes on at the server's."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, job: JobRecord, going: Sequence[Deletion], request: Coroutine[Any, Any, None]) -> None:
        self._store.expect(going)
        task = asyncio.create_task(self._watch_over(job, going, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_over(self, job: JobRecord, going: Sequence[Deletion], request: Coroutine[Any, Any, None]) -> None:
        try:
            await request
        except ApiError as error:
            logger.warning("%d pods are not deleted yet; trying again: %s", len(going), error)
            self._store.despair(going)
            self._changed(job.uid)

    async def _sweep(self, job: JobRecord, sweep: Sweep) -> None:
        query = {"labelSelector": sweep.selector}
        if sweep.field_selector:
            query["fieldSelector"] = sweep.field_selector
        body = {"gracePeriodSeconds": sweep.grace_seconds}
        await self._client.request("deletecollection", PODS, job.namespace, query=query, body=body, patience=COLLECTION)

    async def _delete_each(self, job: JobRecord, singles: Sequence[Deletion]) -> None:
        done = await asyncio.gather(*(self._delete(job, found) for found in singles), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _delete(self, job: JobRecord, deletion: Deletion) -> None:
        """Delete that very pod. That it is gone, or another one by now, is all right."""
        body = {"gracePeriodSeconds": deletion.grace_seconds, "preconditions": {"uid": deletion.uid}}
        async with self._slots:
            with contextlib.suppress(NotFound, Conflict):
                await self._client.request("delete", PODS, job.namespace, deletion.name, body=body)


def _parts(sweep: Sweep, pods: Sequence[PodView]) -> list[Sweep]:
    """The same deletions by several requests, about equally many each."""
    count = -(-len(sweep.pods) // SWEEP_PODS)
    if count == 1:
        return [sweep]
    index = {pod.name: pod.index for pod in pods}
    return [_part(sweep, sweep.pods[first::count], index) for first in range(count)]


def _part(sweep: Sweep, pods: tuple[str, ...], index: Mapping[str, int]) -> Sweep:
    indexes = ",".join(str(index[name]) for name in pods)
    return replace(sweep, selector=f"{sweep.selector},{names.LABEL_INDEX} in ({indexes})", pods=pods)
