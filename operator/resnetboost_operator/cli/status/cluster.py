"""Jobs of a cluster for `resnetboost status`: asks the API server, shows, follows what changes; it writes nothing."""

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
from resnetboost_operator.cli.status.command import Wanted
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.controller.lease import Lease
from resnetboost_operator.errors import UserError
from resnetboost_operator.kubeclient import reader
from resnetboost_operator.kubeclient.cache import Mirror
from resnetboost_operator.kubeclient.reader import Reader
from resnetboost_operator.kubeclient.reflector import Watch

FAILED = 1
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
TICK_SECONDS = 1.0
LOOK_SECONDS = 10.0


def run(wanted: Wanted) -> int:
    """Print, and follow if that is wanted; the exit code. Raises `UserError` if the question cannot be answered."""
    for value, what in ((wanted.target, "job"), (wanted.namespace, "namespace")):
        if value and not _NAME.fullmatch(value):
            raise UserError(
                f"{value!r} can be no {what}'s name; use a-z, 0-9 and '-' (a run folder is written with a /)"
            )
    return asyncio.run(interruptible.until_interrupted(_answer(wanted)))


async def _answer(wanted: Wanted) -> int:
    async with reader.connected() as cluster:
        namespace = "" if wanted.everywhere else wanted.namespace or cluster.namespace
        following = _Following(wanted, cluster, namespace)
        await cluster.fill(following.watch)
        await following.look()
        found = following.jobs()
        if wanted.target and not found:
            raise UserError(await _missing(cluster, namespace, wanted.target))
        if wanted.follow:
            return await following.run()
        if not found and wanted.form == "text":
            place = "in any namespace" if wanted.everywhere else f"in namespace {namespace}; -A looks in all"
            print(f"resnetboost: there are no jobs {place}", file=sys.stderr)
            return 0
        events = await cluster.events(namespace, found[0].uid) if wanted.target and wanted.form == "text" else []
        now = time.time()
        told = tuple(job_facts.events(events, now)) if wanted.target else ()
        following.screen.show(found, told)
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
    """The jobs as they are known, and the screen that shows them."""

    def __init__(self, wanted: Wanted, cluster: Reader, namespace: str) -> None:
        self._wanted = wanted
        self._cluster = cluster
        self._changed = asyncio.Event()
        self._leases: Sequence[Lease] | None = None
        self._looked_at = float("-inf")
        self._last: JobView | None = None
        self._mirror: Mirror[JobView] = Mirror(job_view.read, self._note)
        self.watch: Watch = cluster.jobs(self._mirror, namespace, wanted.target)
        self.screen = screens.choose(
            wanted.form, one=bool(wanted.target), follow=wanted.follow, all_spaces=wanted.everywhere
        )

    def jobs(self) -> tuple[JobView, ...]:
        """All of them; if one is wanted the one that was there first, not a later one of its name."""
        known = self._last.uid if self._wanted.target and self._last is not None else ""
        found = [job for job in self._mirror if not known or job.uid == known]
        now, seen = time.time(), self._looked_at > float("-inf")
        return tuple(_with_silence(job, self._leases, now) if seen else job for job in found)

    async def look(self) -> None:
        """Ask for the operators' leases, if nothing was heard of a job for long; from time to time."""
        now = time.time()
        quiet = any(silence.is_quiet(job.status, job.created, now) for job in self._mirror)
        if quiet and time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._leases = await self._cluster.leases()
            self._looked_at = time.monotonic()

    def _note(self, before: JobView | None, after: JobView | None) -> None:
        """Of the one job its last version is kept: it may end and be deleted before that was shown."""
        job, last = after or before, self._last
        if last is None or (job is not None and job.uid == last.uid):
            self._last = job
        self._changed.set()

    async def run(self) -> int:
        """Show what changes until the one job is over; without one until somebody interrupts."""
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
        over = bool(self._wanted.target) and last is not None and last.is_over
        self.screen.notice("" if over else _trouble(self.watch))
        self.screen.show((last,) if over and last is not None else found, ())
        if over and last is not None:
            return 0 if last.status.phase == "Complete" else FAILED
        if self._wanted.target and last is not None and not found:
            self.screen.notice(f"{last.name} is deleted")
            return FAILED
        return None

    async def _until_changed(self, watching: asyncio.Task[Any]) -> None:
        """Until there is something to show: news, or that time has passed."""
        news = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({news, watching}, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if watching.done():
            watching.result()


def _with_silence(job: JobView, leases: Sequence[Lease] | None, now: float) -> JobView:
    return replace(job, silence=silence.of(job.status, job.created, leases, now))


def _trouble(watch: Watch) -> str:
    return f"{' '.join(job_view.legible(watch.trouble).split())}; trying again" if watch.trouble else ""
