"""In-memory copy of jobs and of what runs and schedules them: pods, nodes, Workloads, PodGroups. Fed by watches.

Reports which job each change concerns; makes no requests.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from resnetboost_operator import status as statuses
from resnetboost_operator.controller import jobs
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.owned_objects import OwnedObjects
from resnetboost_operator.kubeclient.cache import Cache
from resnetboost_operator.manifests.devices import PUBLISHED, Images
from resnetboost_operator.observed import nodes, ownership, pods
from resnetboost_operator.observed.capabilities import KUEUE, POD_GROUP_APIS, Capabilities
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.planning.actions import Deletion
from resnetboost_operator.scheduling.kueue import workload as workloads

# An accepted deletion shows in the watch at once; after this time it is not expected any more.
EXPECTED_SECONDS = 30.0

NOTHING_OPTIONAL = Capabilities()

# A rank: stage, attempt and index.
_Place = tuple[str, int, int]


class Store:
    """All caches. `changed` is called with the uid of each job that a change concerns.

    `enabled`: which optional APIs the operator may use; which of them there are is found out later (`serve`).
    """

    def __init__(
        self,
        namespaces: Collection[str],
        changed: Callable[[str], None],
        images: Images = PUBLISHED,
        enabled: Capabilities = NOTHING_OPTIONAL,
        launcher_key: str = "",
    ) -> None:
        self._changed = changed
        self._images = images
        self._launcher_key = launcher_key
        self._enabled = enabled
        self._served: frozenset[str] | None = None
        self.jobs = Cache(self.read_job, self._job_changed)
        self.pods = {namespace: Cache(_pod, self._pod_changed) for namespace in namespaces or ("",)}
        self.nodes = Cache(nodes.view, self._node_changed)
        self._pods_of: dict[str, dict[str, PodView]] = defaultdict(dict)
        self._tombstones: dict[str, dict[_Place, PodView]] = {}
        self._nodes_by_name: dict[str, NodeView] = {}
        self._silent_since: dict[str, float] = {}
        self._expectations = _Expectations()
        self.workloads = OwnedObjects(namespaces, ownership.workload, self._changed, self._all_changed)
        self.pod_groups = {
            api: OwnedObjects(namespaces, partial(ownership.pod_group, api=api), self._changed, self._all_changed)
            for api in POD_GROUP_APIS
        }

    @property
    def synced(self) -> bool:
        """True once every cache has received a complete list, also those of the optional APIs that are served."""
        needed = (self.jobs, self.nodes, *self.pods.values(), *(self.objects_of(api) for api in self.served))
        return self.discovered and all(cache.synced for cache in needed)

    @property
    def optional_apis(self) -> dict[str, str]:
        """The optional APIs (group/version) that the operator may use, with the resource it uses in each."""
        queues = {KUEUE: "workloads"} if self._enabled.kueue_enabled else {}
        return queues | (dict.fromkeys(POD_GROUP_APIS, "podgroups") if self._enabled.gangs_enabled else {})

    @property
    def served(self) -> frozenset[str]:
        """Which of the optional APIs are served, as far as known."""
        return self._served or frozenset()

    @property
    def discovered(self) -> bool:
        """True once it is known which of the optional APIs are served."""
        return self._served is not None or not self.optional_apis

    @property
    def capabilities(self) -> Capabilities:
        """What plans may use: an API counts once its objects have been listed, so that none is taken for missing."""
        known = {api for api in self.served if self.objects_of(api).synced}
        return replace(self._enabled, pod_groups=frozenset(known - {KUEUE}), kueue=KUEUE in known)

    def objects_of(self, api: str) -> OwnedObjects[WorkloadView] | OwnedObjects[PodGroupView]:
        """The objects of an optional API."""
        return self.workloads if api == KUEUE else self.pod_groups[api]

    def serve(self, apis: frozenset[str]) -> None:
        """Note which optional APIs are served; forget the objects of others. All jobs are planned anew."""
        gone = self.served - apis
        self._served = apis
        for api in gone:
            self.objects_of(api).clear()
        self._all_changed()

    def read_job(self, obj: Mapping[str, Any]) -> JobRecord:
        """Read a job from its manifest, with this cluster's default images and the id of this operator's key."""
        return jobs.read(obj, self._images, self._launcher_key)

    def invalidate(self) -> None:
        """Count as synced again only after the next list of pods, Workloads and PodGroups."""
        for cache in self.pods.values():
            cache.synced = False
        for api in self.served:
            self.objects_of(api).invalidate()

    def workload_of(self, job: JobRecord) -> WorkloadView | None:
        """The job's Workload, None without one. It has exactly one valid name: anybody may write an owner reference."""
        name = workloads.name_of(job.name, job.uid)
        found = (one for one in self.workloads.of(job) if (one.name, one.job_name) == (name, job.name))
        return next(found, None)

    def pod_groups_of(self, job: JobRecord) -> tuple[PodGroupView, ...]:
        """The job's PodGroups of all attempts, in the APIs that are served."""
        return tuple(group for api in POD_GROUP_APIS if api in self.served for group in self.pod_groups[api].of(job))

    def pods_of(self, job: JobRecord) -> tuple[PodView, ...]:
        """The job's pods; those with an expected deletion are marked as deleting."""
        found = self._pods_of.get(job.uid, {}).values()
        return tuple(self._expectations.applied(pod) for pod in found if _is_of(pod, job))

    def tombstones_of(self, job: JobRecord) -> tuple[PodView, ...]:
        """The last state of deleted pods of the job's current attempt; forgets those of earlier attempts."""
        stage, current = job.status.stage, statuses.pods_attempt(job.status)
        found = self._tombstones.pop(job.uid, {})
        kept = {place: pod for place, pod in found.items() if pod.attempt >= current}  # the cached status may be old
        if kept:
            self._tombstones[job.uid] = kept
        return tuple(pod for pod in kept.values() if (pod.stage, pod.attempt) == (stage, current))

    def nodes_of(self, views: Collection[PodView]) -> Mapping[str, NodeView]:
        """The known nodes that those pods are bound to, by name."""
        found = (self._nodes_by_name.get(name) for name in {pod.node for pod in views})
        return {
            node.name: replace(node, silent_since=self._silent_since.get(node.name, 0.0))
            for node in found
            if node is not None
        }

    @property
    def every_node(self) -> tuple[NodeView, ...]:
        """All known nodes."""
        return tuple(self._nodes_by_name.values())

    def labelled_nodes(self, key: str) -> int | None:
        """How many nodes have a label with that key; None for no key."""
        return sum(key in node.label_keys for node in self._nodes_by_name.values()) if key else None

    def apply_pod_response(self, obj: Mapping[str, Any]) -> None:
        """Apply the API server's response to the creation of a pod or a request for one."""
        namespace = obj["metadata"]["namespace"]
        cache = self.pods[namespace] if namespace in self.pods else self.pods[""]
        view = cache.apply_response(obj)
        if view is not None:
            self._pod_changed(None, view)

    def apply_pod_group_response(self, obj: Mapping[str, Any]) -> None:
        """Apply the API server's response to the creation of a PodGroup or a request for one."""
        self.pod_groups[obj["apiVersion"]].apply_response(obj)

    def is_deletion_expected(self, deletion: Deletion) -> bool:
        """True if that deletion was requested already, with the same or a shorter grace period."""
        return self._expectations.covers(deletion)

    def expect_deletions(self, deletions: Collection[Deletion]) -> None:
        """Expect the watch to report these deletions."""
        self._expectations.add(deletions)

    def forget_deletions(self, deletions: Collection[Deletion]) -> None:
        """Expect these deletions no longer, since they failed."""
        self._expectations.discard(found.uid for found in deletions)

    def expectation_seconds(self, job: JobRecord) -> float | None:
        """Seconds until the next expected deletion of the job's pods is given up; None if none is expected."""
        return self._expectations.seconds(self._pods_of.get(job.uid, {}).values())

    def _all_changed(self) -> None:
        for job in self.jobs:
            self._changed(job.uid)

    def _job_changed(self, before: JobRecord | None, after: JobRecord | None) -> None:
        found = after or before
        if found is None:
            return
        if after is None:
            self._tombstones.pop(found.uid, None)
        self._changed(found.uid)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        found = after or before
        if found is None:
            return
        if after is None:
            self._forget(found)
        else:
            self._pods_of[found.job_uid][found.uid] = after
        self._changed(found.job_uid)

    def _forget(self, pod: PodView) -> None:
        self._expectations.discard((pod.uid,))
        job = self.jobs.get(pod.job_uid)
        if (pod.termination is not None or pod.disruption) and job is not None and _is_of(pod, job):
            departed = self._tombstones.setdefault(pod.job_uid, {})
            place = (pod.stage, pod.attempt, pod.index)
            if place not in departed or departed[place].termination is None:  # the first report counts
                departed[place] = pod
        siblings = self._pods_of[pod.job_uid]
        siblings.pop(pod.uid, None)
        if not siblings:
            del self._pods_of[pod.job_uid]

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        found = after or before
        if found is None:
            return
        if after is not None:
            self._nodes_by_name[found.name] = after
        elif self._nodes_by_name.get(found.name) == found:  # unless another one has that name by now
            del self._nodes_by_name[found.name]
        known = self._nodes_by_name.get(found.name)
        if known is None or known.ready:
            self._silent_since.pop(found.name, None)
        else:
            self._silent_since.setdefault(found.name, time.time())
        for uid, siblings in self._pods_of.items():
            if any(pod.node == found.name for pod in siblings.values()):
                self._changed(uid)


class _Expectations:
    """Requested deletions that the watch has not reported yet, so that no pass requests them again."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, float]] = {}

    def add(self, deletions: Collection[Deletion]) -> None:
        now = time.monotonic()
        known = {uid: found for uid, found in self._until.items() if found[1] > now}  # expired ones are dropped
        new = {found.uid: (found.grace_seconds, now + EXPECTED_SECONDS) for found in deletions}
        self._until = known | new

    def discard(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._until.pop(uid, None)

    def covers(self, deletion: Deletion) -> bool:
        grace, until = self._until.get(deletion.uid, (0, 0.0))
        return grace <= deletion.grace_seconds and time.monotonic() < until

    def seconds(self, pods: Iterable[PodView]) -> float | None:
        return min((wait for pod in pods if not pod.deleting and (wait := self._wait(pod)) > 0), default=None)

    def applied(self, pod: PodView) -> PodView:
        if pod.deleting or self._wait(pod) <= 0:
            return pod
        return replace(pod, deleting=True)

    def _wait(self, pod: PodView) -> float:
        """Seconds for which the pod's deletion is still expected."""
        return self._until[pod.uid][1] - time.monotonic() if pod.uid in self._until else 0.0


def _is_of(pod: PodView, job: JobRecord) -> bool:
    """True if the pod belongs to the job. A uid alone is not enough: any pod may claim it."""
    return (pod.namespace, pod.job_name, pod.job_uid) == (job.namespace, job.name, job.uid)


def _pod(obj: Mapping[str, Any]) -> PodView | None:
    """View of a job's pod; None for a foreign pod that carries the label."""
    try:
        return pods.view(obj)
    except (KeyError, ValueError, TypeError, AttributeError):  # anybody may write labels and owner references
        return None
