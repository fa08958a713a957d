"""Objects of one kind that jobs own (Workloads, PodGroups), cached for each watched namespace and found by job."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Protocol, TypeVar

from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.kubeclient.cache import Cache

Manifest = Mapping[str, Any]


class Owned(Protocol):
    """View of an object that a job owns."""

    @property
    def namespace(self) -> str:
        """The object's namespace."""

    @property
    def name(self) -> str:
        """The object's name."""

    @property
    def uid(self) -> str:
        """The object's uid."""

    @property
    def job_uid(self) -> str:
        """The uid of the job that owns it."""


View = TypeVar("View", bound=Owned)


class OwnedObjects(Generic[View]):
    """Views by job. `read` returns None for an object that is not ours.

    `changed` is called with the uid of each job whose objects change, `listed` when all objects are known after a time
    in which they were not.
    """

    def __init__(
        self,
        namespaces: Collection[str],
        read: Callable[[Manifest], View | None],
        changed: Callable[[str], None],
        listed: Callable[[], None],
    ) -> None:
        self._changed = changed
        self._listed = listed
        self._of: dict[str, dict[str, View]] = defaultdict(dict)
        self.caches = {
            namespace: _ListedCache(read, self._view_changed, self._cache_listed) for namespace in namespaces or ("",)
        }

    @property
    def synced(self) -> bool:
        """True once every namespace has been listed completely."""
        return all(cache.synced for cache in self.caches.values())

    def of(self, job: JobRecord) -> tuple[View, ...]:
        """The job's objects, by name."""
        found = self._of.get(job.uid, {}).values()
        return tuple(sorted((view for view in found if view.namespace == job.namespace), key=lambda view: view.name))

    def apply_response(self, obj: Manifest) -> None:
        """Apply the API server's response to a write of an object or a request for one."""
        namespace = obj["metadata"]["namespace"]
        cache = self.caches[namespace] if namespace in self.caches else self.caches[""]
        view = cache.apply_response(obj)
        if view is not None:
            self._view_changed(None, view)

    def invalidate(self) -> None:
        """Count as synced again only after the next list."""
        for cache in self.caches.values():
            cache.synced = False

    def clear(self) -> None:
        """Forget all objects: their API is not served any more."""
        self.invalidate()
        for cache in self.caches.values():
            for view in list(cache):
                cache.remove(view.uid)

    def _view_changed(self, before: View | None, after: View | None) -> None:
        for view in (before, after):
            if view is not None:
                self._index(view, is_there=view is after)
        for uid in {view.job_uid for view in (before, after) if view is not None}:
            self._changed(uid)

    def _index(self, view: View, is_there: bool) -> None:
        siblings = self._of[view.job_uid]
        if is_there:
            siblings[view.uid] = view
        else:
            siblings.pop(view.uid, None)
        if not siblings:
            del self._of[view.job_uid]

    def _cache_listed(self) -> None:
        if self.synced:
            self._listed()


class _ListedCache(Cache[View]):
    """A cache that calls `listed` when it becomes synced."""

    def __init__(
        self,
        read: Callable[[Manifest], View | None],
        changed: Callable[[View | None, View | None], None],
        listed: Callable[[], None],
    ) -> None:
        super().__init__(read, changed)
        self._listed_completely = listed

    def end_list(self, version: int) -> None:
        """End the list of that version."""
        was_synced = self.synced
        super().end_list(version)
        if not was_synced:
            self._listed_completely()
