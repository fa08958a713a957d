"""Lists a collection and watches it for ever after, through everything that may happen to a connection."""

import asyncio
import contextlib
import logging
import random
import time
from typing import Any, NoReturn, Protocol

import aiohttp
import msgspec

from resnetboost_operator.kubeclient import errors
from resnetboost_operator.kubeclient.cache import version_of
from resnetboost_operator.kubeclient.client import CONNECT_SECONDS, PATIENT, Client, Patience
from resnetboost_operator.kubeclient.errors import ApiError, Gone
from resnetboost_operator.kubeclient.resources import Resource
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

PAGE = 500
# The server ends a watch after this long; not all watches at the same time.
LEAST_SECONDS, MOST_SECONDS = 480, 600
# Bookmarks come about once a minute, also while nothing changes: a silent connection is a dead one.
SILENCE_SECONDS = 150.0
# Neither a server that ends each watch at once nor one that is down is asked without pause.
PAUSE_SECONDS = 0.1
BACKOFF = Backoff(first_seconds=1.0, most_seconds=10.0)


class Sink(Protocol):
    """Who is told what there is (see `Mirror`)."""

    def list_begins(self) -> None:
        """A complete list follows."""

    def listed(self, obj: dict[str, Any]) -> None:
        """One object of it."""

    def list_ends(self, version: int) -> None:
        """It is complete, as of that version."""

    def watched(self, kind: str, obj: dict[str, Any]) -> None:
        """ADDED, MODIFIED or DELETED."""

    def reached(self, version: int) -> None:
        """Everything up to that version has been told."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """One page of a list; its items stay bytes until each has its turn, or a thousand pods are 40 MiB of dicts."""

    metadata: _ListMeta
    items: list[msgspec.Raw]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_page = msgspec.json.Decoder(Page)
_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(dict[str, Any])


class Watch:
    """One collection, in one namespace or all, by label or field.

    `heard_at` (monotonic) is its last sign of life, `trouble` what keeps it from being up to date, or ''.
    """

    def __init__(
        self, client: Client, resource: Resource, sink: Sink, namespace: str = "", labels: str = "", fields: str = ""
    ) -> None:
        self._client = client
        self._resource = resource
        self._sink = sink
        self._namespace = namespace
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        self._selector = {key: value for key, value in selectors.items() if value}
        self._version = 0
        self.name = f"{resource.plural} of {namespace or 'all namespaces'}"
        self.heard_at = time.monotonic()
        self.trouble = "not listed yet"

    def start_over(self) -> None:
        """The next `run` lists first, however well the last one was informed."""
        self._version = 0
        self.trouble = "not listed yet"

    async def run(self) -> NoReturn:
        """List and watch, and again."""
        failures, self.heard_at = 0, time.monotonic()
        while True:
            began, version = time.monotonic(), self._version
            try:
                if not self._version:
                    await self.fill()
                await self._watch()
            except Gone:
                self._version = 0
            except (ApiError, msgspec.MsgspecError) as error:  # or something that is no API server answers
                self._complain(error)
            self.heard_at = time.monotonic()
            # A busy API server ends watches too: that of a thousand pods that start, every few seconds.
            useful = self._version > version or self.heard_at - began > BACKOFF.most_seconds
            failures = 0 if useful else failures + 1
            logger.debug("the watch of the %s ended after %.1f s", self.name, self.heard_at - began)
            await asyncio.sleep(BACKOFF.delay_seconds(failures) if failures else PAUSE_SECONDS)

    def _complain(self, error: Exception) -> None:
        """Say a trouble once, however long it lasts."""
        level = logging.DEBUG if self.trouble == str(error) else logging.WARNING
        logger.log(level, "cannot watch the %s; trying again: %s", self.name, error)
        self.trouble = str(error)

    async def fill(self, patience: Patience = PATIENT) -> None:
        """List once; `run` goes on from there. Raises one of `apierrors`."""
        self._sink.list_begins()
        query = {**self._selector, "limit": str(PAGE)}
        while True:
            answer = await self._client.request("list", self._resource, self._namespace, query=query, patience=patience)
            page = _page.decode(answer)
            for item in page.items:
                self._sink.listed(_object.decode(item))
            self.heard_at = time.monotonic()
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._version = int(page.metadata.resource_version)
        self._sink.list_ends(self._version)
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
                self._told(_event.decode(line))
                self._heard()

    def _heard(self) -> None:
        self.heard_at = time.monotonic()
        self.trouble = ""

    def _told(self, event: _Event) -> None:
        if event.type == "ERROR":
            raise errors.from_watch(f"watch {self.name}", bytes(event.object))
        obj = _object.decode(event.object)
        if event.type == "BOOKMARK":
            self._sink.reached(version_of(obj))
        else:
            self._sink.watched(event.type, obj)
        self._version = version_of(obj)
