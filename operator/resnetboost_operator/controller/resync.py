"""Finds out what kopf does not tell of jobs: when it has shown all there are, and which went while nobody watched.

kopf lists and watches them; a listing shows what is there, so a job deleted while the watch was broken is never heard
of again. So whenever kopf has listed, the uids are listed once more and the others forgotten.
A connection may also be dead without either end knowing: whoever begins to lead lists the jobs anew.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import aiohttp
import msgspec

from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.reflector import PAGE, Page
from resnetboost_operator.kubeclient.resources import JOBS
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# Until kopf has passed on all jobs that it has listed; then after errors.
AGAIN = Backoff(first_seconds=0.2, most_seconds=5.0)


class _Metadata(msgspec.Struct):
    uid: str


class _Named(msgspec.Struct):
    metadata: _Metadata


_page = msgspec.json.Decoder(Page)
_named = msgspec.json.Decoder(_Named)
_object = msgspec.json.Decoder(dict[str, Any])


class Census:
    """Listens to kopf's requests; `heard_at` (monotonic) is the last of them."""

    def __init__(self, client: Client, store: Store, namespaces: Sequence[str], metrics: Metrics) -> None:
        self._client = client
        self._store = store
        self._namespaces = namespaces or ("",)
        self._metrics = metrics
        self._listed = asyncio.Event()
        self._trouble = ""
        self.heard_at = time.monotonic()

    def trace(self) -> aiohttp.TraceConfig:
        """For the session that kopf is given."""
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        trace.on_request_exception.append(self._failed)
        return trace

    async def run(self) -> NoReturn:
        """Take a census after each of kopf's listings."""
        self.heard_at = time.monotonic()
        while True:
            await self._listed.wait()
            self._listed.clear()
            failures = 1
            while not await self._is_complete():
                await asyncio.sleep(AGAIN.delay_seconds(failures))
                failures += 1
            self._store.jobs.filled = True

    async def list_anew(self) -> None:
        """Bring every job up to date; ends once it has been done, however often it takes."""
        failures = 1
        while not await self._has_listed():
            await asyncio.sleep(AGAIN.delay_seconds(failures))
            failures += 1

    async def _has_listed(self) -> bool:
        """Tell the store of all jobs; one that it knows in a newer version stays as it is."""
        try:
            items, version = await self._items()
        except ApiError as error:
            logger.warning("cannot list the jobs; trying again: %s", error)
            return False
        jobs = self._store.jobs
        jobs.list_begins()
        for item in items:
            jobs.listed(_object.decode(item))
        jobs.list_ends(version)
        return True

    async def _is_complete(self) -> bool:
        """Forget the jobs that are gone; whether kopf has told of all others."""
        try:
            items, version = await self._items()
        except ApiError as error:
            logger.warning("cannot list the jobs; trying again: %s", error)
            return False
        uids = {_named.decode(item).metadata.uid for item in items}
        self._store.jobs.keep(uids, version)
        return all(self._store.jobs.get(uid) is not None for uid in uids)

    async def _items(self) -> tuple[list[msgspec.Raw], int]:
        """All jobs, and the version up to which they are all."""
        items: list[msgspec.Raw] = []
        versions = []
        for namespace in self._namespaces:
            query = {"limit": str(PAGE)}
            while True:
                page = _page.decode(await self._client.request("list", JOBS, namespace, query=query))
                items += page.items
                if not page.metadata.continue_:
                    break
                query["continue"] = page.metadata.continue_
            versions.append(int(page.metadata.resource_version))
        return items, min(versions)

    async def _answered(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        is_list = params.url.path.endswith(f"/{JOBS.plural}") and "watch" not in params.url.query
        self._count(params, str(params.response.status))
        if params.response.status != 200:
            self._complain(f"HTTP {params.response.status}")
            return
        self._trouble = ""
        if is_list:
            self._listed.set()

    async def _failed(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        self._count(params, "error")
        self._complain(f"{type(params.exception).__name__} {params.exception}")

    def _complain(self, trouble: str) -> None:
        """Say a trouble once, however long it lasts; kopf tries again."""
        if trouble != self._trouble:
            logger.warning("cannot watch the jobs; trying again: no answer from %s: %s", self._client.host, trouble)
        self._trouble = trouble

    def _count(self, params: aiohttp.TraceRequestEndParams | aiohttp.TraceRequestExceptionParams, code: str) -> None:
        """kopf asks for jobs and, when it starts, for what kinds there are."""
        self.heard_at = time.monotonic()
        known = params.url.path.endswith(f"/{JOBS.plural}")
        verb = "watch" if "watch" in params.url.query else "list" if known else "get"
        self._metrics.requests.labels(verb, JOBS.plural if known else "discovery", code).inc()
