"""One collection as its watch tells it: the newest version of each object and no ghosts; it asks nobody."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

Manifest = Mapping[str, Any]
View = TypeVar("View")


def version_of(obj: Manifest) -> int:
    """The object's or list's resourceVersion; within one kind of object a larger one is newer."""
    return int(obj["metadata"]["resourceVersion"])


class _Row(msgspec.Struct, Generic[View], frozen=True):
    version: int
    view: View


class Mirror(Generic[View]):
    """Views of objects by uid.

    `read` makes a view of an object, or None of one that is not ours; only views are kept: an object is ten times as
    large. `changed` is told the view before and the one after, None where there is none, of what lists and watches say.
    """

    def __init__(
        self, read: Callable[[Manifest], View | None], changed: Callable[[View | None, View | None], None]
    ) -> None:
        self._read = read
        self._changed = changed
        self._rows: dict[str, _Row[View]] = {}
        self._listed: set[str] = set()
        self._reached = 0
        self.filled = False

    def __iter__(self) -> Iterator[View]:
        """All views."""
        return (row.view for row in self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, uid: str) -> View | None:
        """That object's view, if it is there."""
        row = self._rows.get(uid)
        return row.view if row is not None else None

    def list_begins(self) -> None:
        """A complete list follows, object by object."""
        self._listed.clear()

    def listed(self, obj: Manifest) -> None:
        """One object of the list."""
        self._listed.add(obj["metadata"]["uid"])
        self._told(obj)

    def list_ends(self, version: int) -> None:
        """The list of that version is complete: what is not in it is gone, unless it came later."""
        self.keep(self._listed, version)
        self._listed.clear()
        self.reached(version)
        self.filled = True

    def keep(self, uids: set[str], version: int) -> None:
        """Forget all objects but these and those that are newer than the version."""
        gone = [uid for uid, row in self._rows.items() if uid not in uids and row.version <= version]
        for uid in gone:
            self.remove(uid)

    def watched(self, kind: str, obj: Manifest) -> None:
        """An event of the watch: ADDED, MODIFIED or DELETED."""
        self._told(obj)  # also of a deletion: a pod may end and go between two events
        if kind == "DELETED":
            self.remove(obj["metadata"]["uid"])
        self.reached(version_of(obj))

    def reached(self, version: int) -> None:
        """The watch has told everything up to that version."""
        self._reached = max(self._reached, version)

    def answered(self, obj: Manifest) -> View | None:
        """The answer to a write of ours, which may come before the watch's event or after it; its view if it is news.

        An object that is not here although the watch is past its version has been deleted since: it stays away.
        """
        if obj["metadata"]["uid"] not in self._rows and version_of(obj) <= self._reached:
            return None
        found = self._put(obj)
        return found[1] if found is not None else None

    def remove(self, uid: str) -> None:
        """The object is gone."""
        row = self._rows.pop(uid, None)
        if row is not None:
            self._changed(row.view, None)

    def _told(self, obj: Manifest) -> None:
        found = self._put(obj)
        if found is not None:
            self._changed(*found)

    def _put(self, obj: Manifest) -> tuple[View | None, View | None] | None:
        """The views before and after; None if nothing is new about it."""
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
