"""Follows one job of a cluster by a list and a watch."""

import asyncio
from collections.abc import Callable

from resnetboost_operator.cli.status import job_view
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import reader
from resnetboost_operator.kubeclient.cache import Cache
from resnetboost_operator.kubeclient.reflector import Reflector


async def changes(name: str, namespace: str, uid: str | None, emit: Callable[[JobView], None]) -> None:
    """Emit the job now and after each change of its status, until it has ended; '' is the kubeconfig's namespace.

    Raises `UserError` if there is no such job, or it is deleted before its end.
    """
    async with reader.connected() as cluster:
        place = namespace or cluster.namespace
        followed = _Followed(uid, emit)
        watch = cluster.jobs(Cache(job_view.read, followed.note), place, name)
        await cluster.fill(watch)
        if not followed.seen:
            raise UserError(f"there is no job {name} in namespace {place}")
        await _watch_until(followed.over, watch)
        if followed.deleted:
            raise UserError(f"job {name} in namespace {place} was deleted before its end")


class _Followed:
    """The first job that the list or the watch brings, or the one of that uid; a later one of its name is another."""

    def __init__(self, uid: str | None, emit: Callable[[JobView], None]) -> None:
        self._uid = uid
        self._emit = emit
        self.over = asyncio.Event()
        self.seen = self.deleted = False

    def note(self, before: JobView | None, after: JobView | None) -> None:
        """Note a change of a job."""
        found = after or before
        if found is None or self.over.is_set() or found.uid != (self._uid or found.uid):
            return
        self._uid, self.seen, self.deleted = found.uid, True, after is None
        if after is not None and (before is None or before.status != after.status):
            self._emit(after)
        if self.deleted or found.is_over:
            self.over.set()


async def _watch_until(over: asyncio.Event, watch: Reflector) -> None:
    watching, ending = asyncio.create_task(watch.run()), asyncio.create_task(over.wait())
    try:
        await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        ending.cancel()
    if watching.done() and not watching.cancelled():
        watching.result()
