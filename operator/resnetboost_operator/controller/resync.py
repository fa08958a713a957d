"""Keeps the cache of jobs complete where kopf does not: removes deleted jobs, and finds out when it is synced.

kopf lists and watches jobs. A list shows only existing jobs, so a job deleted while the watch was broken would stay in
the cache. After each list of kopf, the uids are listed again and jobs without one are removed.
A connection may also be dead without either end noticing, so a new leader lists the jobs again.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import aiohttp
import msgspec

from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client, RequestObserver
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.reflector import PAGE, Page
from resnetboost_operator.kubeclient.resources import JOBS
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# Between checks whether kopf has delivered all jobs of its list, and after errors.
AGAIN = Backoff(first_seconds=0.2, most_seconds=5.0)


class _Metadata(msgspec.Struct):
    uid: str


class _Named(msgspec.Struct):
    metadata: _Metadata


_page = msgspec.json.Decoder(Page)
_named = msgspec.json.Decoder(_Named)
_object = msgspec.json.Decoder(dict[str, Any])


class Resync:
    """Follows kopf's requests; `heard_at` (monotonic) is the time of the last response."""

    def __init__(self, client: Client, store: Store, namespaces: Sequence[str], observer: RequestObserver) -> None:
        self._client = client
        self._store = store
        self._namespaces = namespaces or ("",)
        self._observer = observer
        self._listed = asyncio.Event()
        self._trouble = ""
        self.heard_at = time.monotonic()

    def trace(self) -> aiohttp.TraceConfig:
        """Trace for the session that kopf uses."""
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        trace.on_request_exception.append(self._failed)
        return trace

    async def run(self) -> NoReturn:
        """Resync after each list of kopf."""
        self.heard_at = time.monotonic()
        while True:
            await self._listed.wait()
            self._listed.clear()
            failures = 1
            while not await self._is_complete():
                await asyncio.sleep(AGAIN.delay_seconds(failures))
                failures += 1
            self._store.jobs.synced = True

    async def relist(self) -> None:
        """List all jobs into the cache, with retries until it succeeds."""
        failures = 1
        while not await self._try_to_list():
            await asyncio.sleep(AGAIN.delay_seconds(failures))
            failures += 1

    async def _try_to_list(self) -> bool:
        """List all jobs into the cache, except those it has in a newer version; True on success."""
        try:
            items, version = await self._items()
        except ApiError as error:
            logger.warning("cannot list the jobs; trying again: %s", error)
            return False
        jobs = self._store.jobs
        jobs.begin_list()
        for item in items:
            jobs.add_listed(_object.decode(item))
        jobs.end_list(version)
        return True

    async def _is_complete(self) -> bool:
        """Remove deleted jobs from the cache; True if kopf has delivered all others."""
        try:
            items, version = await self._items()
        except ApiError as error:
            logger.warning("cannot list the jobs; trying again: %s", error)
            return False
        uids = {_named.decode(item).metadata.uid for item in items}
        self._store.jobs.retain(uids, version)
        return all(self._store.jobs.get(uid) is not None for uid in uids)

    async def _items(self) -> tuple[list[msgspec.Raw], int]:
        """All jobs, and the resourceVersion of the list."""
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
        """Log a problem once, however long it lasts; kopf retries."""
        if trouble != self._trouble:
            logger.warning("cannot watch the jobs; trying again: no answer from %s: %s", self._client.host, trouble)
        self._trouble = trouble

    def _count(self, params: aiohttp.TraceRequestEndParams | aiohttp.TraceRequestExceptionParams, code: str) -> None:
        """Report a request of kopf: for jobs or, at its start, for the API's resources."""
        self.heard_at = time.monotonic()
        known = params.url.path.endswith(f"/{JOBS.plural}")
        verb = "watch" if "watch" in params.url.query else "list" if known else "get"
        self._observer(verb, JOBS.plural if known else "discovery", code)
