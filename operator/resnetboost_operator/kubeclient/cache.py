"""In-memory cache of one collection, fed by lists, watch events and responses to writes. Makes no requests."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

Manifest = Mapping[str, Any]
View = TypeVar("View")


def version_of(obj: Manifest) -> int:
    """The resourceVersion of an object or a list; within one kind, a larger one is newer."""
    return int(obj["metadata"]["resourceVersion"])


class _Row(msgspec.Struct, Generic[View], frozen=True, gc=False):
    version: int
    view: View


class Cache(Generic[View]):
    """Views of objects by uid.

    `read` converts an object to a view, or returns None for an object that is not ours. Only views are kept; an object
    is ten times as large. `changed` is called with the views before and after each change that a list or the watch
    brings; None stands for a missing object. `synced` is True after the first complete list.
    """

    def __init__(
        self, read: Callable[[Manifest], View | None], changed: Callable[[View | None, View | None], None]
    ) -> None:
        self._read = read
        self._changed = changed
        self._rows: dict[str, _Row[View]] = {}
        self._listed: set[str] = set()
        self._reached = 0
        self.synced = False

    def __iter__(self) -> Iterator[View]:
        """All views."""
        return (row.view for row in self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, uid: str) -> View | None:
        """The view of that object, or None."""
        row = self._rows.get(uid)
        return row.view if row is not None else None

    def begin_list(self) -> None:
        """Begin a complete list."""
        self._listed.clear()

    def add_listed(self, obj: Manifest) -> None:
        """Add one object of the list."""
        self._listed.add(obj["metadata"]["uid"])
        self._apply(obj)

    def end_list(self, version: int) -> None:
        """End the list of that version: remove objects that are not in it, except newer ones."""
        self.retain(self._listed, version)
        self._listed.clear()
        self.advance(version)
        self.synced = True

    def retain(self, uids: set[str], version: int) -> None:
        """Remove all objects except these and those newer than the version."""
        gone = [uid for uid, row in self._rows.items() if uid not in uids and row.version <= version]
        for uid in gone:
            self.remove(uid)

    def apply_event(self, kind: str, obj: Manifest) -> None:
        """Apply a watch event: ADDED, MODIFIED or DELETED."""
        self._apply(obj)  # for a deletion too: a pod may terminate and be deleted between two events
        if kind == "DELETED":
            self.remove(obj["metadata"]["uid"])
        self.advance(version_of(obj))

    def advance(self, version: int) -> None:
        """Record that the watch has delivered everything up to that version."""
        self._reached = max(self._reached, version)

    def apply_response(self, obj: Manifest) -> View | None:
        """Apply the response to our own write, which may arrive before or after its watch event; return a changed view.

        An object that is missing although the watch is past its version has been deleted since, and is not added.
        """
        if obj["metadata"]["uid"] not in self._rows and version_of(obj) <= self._reached:
            return None
        found = self._put(obj)
        return found[1] if found is not None else None

    def remove(self, uid: str) -> None:
        """Remove the object."""
        row = self._rows.pop(uid, None)
        if row is not None:
            self._changed(row.view, None)

    def _apply(self, obj: Manifest) -> None:
        found = self._put(obj)
        if found is not None:
            self._changed(*found)

    def _put(self, obj: Manifest) -> tuple[View | None, View | None] | None:
        """Store the object; return its views before and after, or None if the view did not change."""
        uid, version = obj["metadata"]["uid"], version_of(obj)
        row = self._rows.get(uid)
        if row is not None and row.version >= version:
            return None
        before, after = row.view if row is not None else None, self._read(obj)
        if after is not None:
            self._rows[uid] = _Row(version, after)
        elif row is not None:
            del self._rows[uid]
        return (before, after) if before != after else None
