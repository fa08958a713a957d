"""Lists a collection and watches it, again and again, so that a cache follows it through any loss of connection."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import aiohttp
import msgspec

from resnetboost_operator.kubeclient import errors
from resnetboost_operator.kubeclient.cache import version_of
from resnetboost_operator.kubeclient.client import CONNECT_SECONDS, DEFAULT_RETRIES, Client, RetryPolicy
from resnetboost_operator.kubeclient.errors import ApiError, Gone
from resnetboost_operator.kubeclient.resources import Resource
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

PAGE = 500
# The server ends a watch after a random time in this range, so that not all watches end at once.
LEAST_SECONDS, MOST_SECONDS = 480, 600
# Bookmarks arrive about once a minute even if nothing changes, so a silent connection is a dead one.
SILENCE_SECONDS = 150.0
# Pause before the next request, in case the server ends each watch at once.
PAUSE_SECONDS = 0.1
BACKOFF = Backoff(first_seconds=1.0, most_seconds=10.0)


class Sink(Protocol):
    """Receives lists and watch events (see `Cache`)."""

    def begin_list(self) -> None:
        """Begin a complete list."""

    def add_listed(self, obj: dict[str, Any]) -> None:
        """Add one object of the list."""

    def end_list(self, version: int) -> None:
        """End the list, which is complete as of that version."""

    def apply_event(self, kind: str, obj: dict[str, Any]) -> None:
        """Apply an event: ADDED, MODIFIED or DELETED."""

    def advance(self, version: int) -> None:
        """Record that everything up to that version was delivered."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """One page of a list. Items are decoded one at a time: a thousand pods would be 40 MiB of dicts."""

    metadata: _ListMeta
    items: list[msgspec.Raw]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_page = msgspec.json.Decoder(Page)
_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(dict[str, Any])


class Reflector:
    """Follows one collection, in one namespace or all, selected by label or field.

    `decode` decodes an object, maybe with only the fields that the sink reads, always with its metadata.

    `heard_at` (monotonic) is the time of the last response or event; `trouble` is the reason why the sink is not up to
    date, or ''.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        sink: Sink,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        decode: Callable[[msgspec.Raw], dict[str, Any]] = _object.decode,
    ) -> None:
        self._client = client
        self._resource = resource
        self._sink = sink
        self._decode = decode
        self._namespace = namespace
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        self._selector = {key: value for key, value in selectors.items() if value}
        self._version = 0
        self.name = f"{resource.plural} of {namespace or 'all namespaces'}"
        self.heard_at = time.monotonic()
        self.trouble = "not listed yet"

    def reset(self) -> None:
        """Make the next `run` list first."""
        self._version = 0
        self.trouble = "not listed yet"

    async def run(self) -> NoReturn:
        """List and watch, for ever."""
        failures, self.heard_at = 0, time.monotonic()
        while True:
            began, version = time.monotonic(), self._version
            try:
                if not self._version:
                    await self.fill()
                await self._watch()
            except Gone:
                self._version = 0
            except (ApiError, msgspec.MsgspecError) as error:  # what responds may not be an API server
                self._complain(error)
            self.heard_at = time.monotonic()
            # A busy API server also ends watches early, every few seconds while a thousand pods start.
            useful = self._version > version or self.heard_at - began > BACKOFF.most_seconds
            failures = 0 if useful else failures + 1
            logger.debug("the watch of the %s ended after %.1f s", self.name, self.heard_at - began)
            await asyncio.sleep(BACKOFF.delay_seconds(failures) if failures else PAUSE_SECONDS)

    def _complain(self, error: Exception) -> None:
        """Log a problem once, however long it lasts."""
        level = logging.DEBUG if self.trouble == str(error) else logging.WARNING
        logger.log(level, "cannot watch the %s; trying again: %s", self.name, error)
        self.trouble = str(error)

    async def fill(self, retries: RetryPolicy = DEFAULT_RETRIES) -> None:
        """List once; `run` continues from there. Raises an `ApiError`."""
        self._sink.begin_list()
        query = {**self._selector, "limit": str(PAGE)}
        while True:
            answer = await self._client.request("list", self._resource, self._namespace, query=query, retries=retries)
            page = _page.decode(answer)
            for item in page.items:
                self._sink.add_listed(self._decode(item))
            self.heard_at = time.monotonic()
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._version = int(page.metadata.resource_version)
        self._sink.end_list(self._version)
        self.trouble = ""

    async def _watch(self) -> None:
        seconds = random.randint(LEAST_SECONDS, MOST_SECONDS)
        query = {
            **self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(seconds),
        }
        timeout = aiohttp.ClientTimeout(total=seconds + 30, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        lines = self._client.lines(self._resource, self._namespace, query, timeout, self._heard)
        async with contextlib.aclosing(lines):
            async for line in lines:
                self._apply(_event.decode(line))
                self._heard()

    def _heard(self) -> None:
        self.heard_at = time.monotonic()
        self.trouble = ""

    def _apply(self, event: _Event) -> None:
        if event.type == "ERROR":
            raise errors.from_watch(f"watch {self.name}", bytes(event.object))
        obj = self._decode(event.object)
        if event.type == "BOOKMARK":
            self._sink.advance(version_of(obj))
        else:
            self._sink.apply_event(event.type, obj)
        self._version = version_of(obj)
