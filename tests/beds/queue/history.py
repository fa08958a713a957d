"""The history of a kind of objects in a namespace, from a watch: every event with its version."""

import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from beds.cluster import ClusterError, ControlPlane

Manifest = dict[str, Any]

_WATCH_SECONDS = 5  # the thread may outlive its test by this much
_PAUSE_SECONDS = 0.02


class Change(NamedTuple):
    """An event: the object as it is since `version`, or as it was when it was deleted at `version`.

    Versions are those of the whole store, so that changes of different kinds can be ordered.
    """

    version: int
    kind: str
    obj: Manifest


class History:
    """Follows objects as a context manager, and calls `changed` after each event."""

    def __init__(self, plane: ControlPlane, path: str, changed: Callable[[], None] = lambda: None) -> None:
        self._plane = plane
        self._path = path
        self._changed = changed
        self._stopping = threading.Event()
        self.changes: list[Change] = []

    def __enter__(self) -> Self:
        listed = json.loads(self._plane.client.get(self._path))
        self._version = listed["metadata"]["resourceVersion"]
        self.changes = [Change(_version(obj), "ADDED", obj) for obj in listed["items"]]
        threading.Thread(target=self._work, name=f"history of {self._path}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            with contextlib.suppress(OSError, ClusterError, ValueError):
                self._follow()

    def _follow(self) -> None:
        query = f"watch=true&resourceVersion={self._version}&timeoutSeconds={_WATCH_SECONDS}"
        for line in self._plane.client.lines(f"{self._path}?{query}"):
            if self._stopping.is_set():
                return
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                self._version = event["object"]["metadata"]["resourceVersion"]
                self.changes.append(Change(int(self._version), event["type"], event["object"]))
                self._changed()


def _version(obj: Manifest) -> int:
    return int(obj["metadata"]["resourceVersion"])
