"""Counts a namespace's pods as they are created, run and disappear, with one lightweight watch."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from beds.cluster.client import Client

# The server ends the watch this often, so that the caller can check its timeout.
_WATCH_SECONDS = 10


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str


class _PodStatus(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _PodStatus


class _Event(msgspec.Struct):
    type: str
    object: _Pod


_event = msgspec.json.Decoder(_Event)


class Pods:
    """Names of pods: they exist (`present`), run (`running`), ever existed (`seen`), ever failed (`failed`)."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        found: dict[str, Any] = json.loads(client.get(f"{self._path}?limit=1"))
        self._version = str(found["metadata"]["resourceVersion"])
        self._events = self._watch()
        self.present: set[str] = set()
        self.running: set[str] = set()
        self.seen: set[str] = set()
        self.failed: set[str] = set()

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 300) -> float:
        """Time (monotonic) of the event that made the condition true. Raises `TimeoutError`."""
        deadline = time.monotonic() + seconds
        moment = time.monotonic()
        while not holds():
            event = next(self._events)
            moment = time.monotonic()
            if event is not None:
                self._apply(event)
            if moment > deadline:
                raise TimeoutError(f"{what}: not within {seconds:g} s; {len(self.present)} are there")
        return moment

    def _watch(self) -> Iterator[_Event | None]:
        """Yield events for ever; None whenever a watch has ended."""
        while True:
            query = f"watch=true&timeoutSeconds={_WATCH_SECONDS}&resourceVersion="
            for line in self._client.lines(f"{self._path}?{query}{self._version}"):
                event = _event.decode(line)
                self._version = event.object.metadata.resource_version
                yield event
            yield None

    def _apply(self, event: _Event) -> None:
        name, gone = event.object.metadata.name, event.type == "DELETED"
        self.seen.add(name)
        (self.present.discard if gone else self.present.add)(name)
        runs = not gone and event.object.status.phase == "Running"
        if event.object.status.phase == "Failed":
            self.failed.add(name)
        (self.running.add if runs else self.running.discard)(name)
