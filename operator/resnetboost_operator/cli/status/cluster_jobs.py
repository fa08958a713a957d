"""`resnetboost status` for jobs in a cluster: lists them once, or follows their changes."""

import asyncio
import difflib
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_operator import readable
from resnetboost_operator.cli import interruptible
from resnetboost_operator.cli.status import job_facts, job_view, screens, silence
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.status.request import StatusRequest
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import reader
from resnetboost_operator.kubeclient.cache import Cache
from resnetboost_operator.kubeclient.lease import Lease
from resnetboost_operator.kubeclient.reader import Reader
from resnetboost_operator.kubeclient.reflector import Reflector

FAILED = 1
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
TICK_SECONDS = 1.0
LOOK_SECONDS = 10.0


def run(request: StatusRequest) -> int:
    """Show the jobs, follow them if requested, and return the exit code. Raises `UserError`."""
    for value, what in ((request.target, "job"), (request.namespace, "namespace")):
        if value and not _NAME.fullmatch(value):
            raise UserError(
                f"{value!r} can be no {what}'s name; use a-z, 0-9 and '-' (a run folder is written with a /)"
            )
    return asyncio.run(interruptible.until_interrupted(_answer(request)))


async def _answer(request: StatusRequest) -> int:
    async with reader.connected() as cluster:
        namespace = "" if request.everywhere else request.namespace or cluster.namespace
        following = _Following(request, cluster, namespace)
        await cluster.fill(following.watch)
        await following.look()
        found = following.jobs()
        if request.target and not found:
            raise UserError(await _missing(cluster, namespace, request.target))
        if request.follow:
            return await following.run()
        if not found and request.form == "text":
            place = "in any namespace" if request.everywhere else f"in namespace {namespace}; -A looks in all"
            print(f"resnetboost: there are no jobs {place}", file=sys.stderr)
            return 0
        events = await cluster.events(namespace, found[0].uid) if request.target and request.form == "text" else []
        now = time.time()
        facts = tuple(job_facts.events(events, now)) if request.target else ()
        following.screen.show(found, facts)
        following.screen.close()
        return 0


async def _missing(cluster: Reader, namespace: str, name: str) -> str:
    there = await cluster.names(namespace)
    near = difflib.get_close_matches(name, there, n=1)
    if near:
        rest = f"did you mean {near[0]}?"
    elif there:
        rest = f"resnetboost status -n {namespace} lists {readable.plural(len(there), 'other')}"
    else:
        rest = "there is none at all; -A looks in all namespaces"
    return f"there is no job {name} in namespace {namespace}; {rest}"


class _Following:
    """The known jobs, and the screen that shows them."""

    def __init__(self, request: StatusRequest, cluster: Reader, namespace: str) -> None:
        self._request = request
        self._cluster = cluster
        self._changed = asyncio.Event()
        self._leases: Sequence[Lease] | None = None
        self._looked_at = float("-inf")
        self._last: JobView | None = None
        self._cache: Cache[JobView] = Cache(job_view.read, self._note)
        self.watch: Reflector = cluster.jobs(self._cache, namespace, request.target)
        self.screen = screens.choose(
            request.form, one=bool(request.target), follow=request.follow, all_spaces=request.everywhere
        )

    def jobs(self) -> tuple[JobView, ...]:
        """All jobs. If one was requested, only the first that had its name, not a later one."""
        known = self._last.uid if self._request.target and self._last is not None else ""
        found = [job for job in self._cache if not known or job.uid == known]
        now, seen = time.time(), self._looked_at > float("-inf")
        return tuple(_with_silence(job, self._leases, now) if seen else job for job in found)

    async def look(self) -> None:
        """List the operators' leases from time to time while some job has not changed for long."""
        now = time.time()
        quiet = any(silence.is_quiet(job.status, job.created, now) for job in self._cache)
        if quiet and time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._leases = await self._cluster.leases()
            self._looked_at = time.monotonic()

    def _note(self, before: JobView | None, after: JobView | None) -> None:
        """Note a change. The last version of a requested job is kept: it may be deleted before it was shown."""
        job, last = after or before, self._last
        if last is None or (job is not None and job.uid == last.uid):
            self._last = job
        self._changed.set()

    async def run(self) -> int:
        """Show changes until the requested job ends, or until interrupted; return the exit code."""
        watching = asyncio.create_task(self.watch.run())
        try:
            while True:
                self._changed.clear()
                await self.look()
                if (code := self._show()) is not None:
                    return code
                await self._until_changed(watching)
        finally:
            watching.cancel()
            self.screen.close()

    def _show(self) -> int | None:
        found, last = self.jobs(), self._last
        over = bool(self._request.target) and last is not None and last.is_over
        self.screen.notice("" if over else _trouble(self.watch))
        self.screen.show((last,) if over and last is not None else found, ())
        if over and last is not None:
            return 0 if last.status.phase == "Complete" else FAILED
        if self._request.target and last is not None and not found:
            self.screen.notice(f"{last.name} is deleted")
            return FAILED
        return None

    async def _until_changed(self, watching: asyncio.Task[Any]) -> None:
        """Wait for a change, at most TICK_SECONDS."""
        news = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({news, watching}, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if watching.done():
            watching.result()


def _with_silence(job: JobView, leases: Sequence[Lease] | None, now: float) -> JobView:
    return replace(job, silence=silence.of(job.status, job.created, leases, now))


def _trouble(watch: Reflector) -> str:
    return f"{' '.join(job_view.legible(watch.trouble).split())}; trying again" if watch.trouble else ""
