"""What is known of jobs, their pods and the nodes, and whose pass it calls for when it changes; it asks nobody."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from resnetboost_operator.controller import jobs
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.kubeclient.cache import Mirror
from resnetboost_operator.manifests.devices import PUBLISHED, Images
from resnetboost_operator.observed import nodes, pods
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning.actions import Deletion

# A deletion that was accepted shows in the watch at once; if it does not, it never will.
EXPECTED_SECONDS = 30.0

# A rank: stage, attempt and index.
_Place = tuple[str, int, int]


class Store:
    """All mirrors. `changed` is called with the uid of each job that something changed for."""

    def __init__(self, namespaces: Collection[str], changed: Callable[[str], None], images: Images = PUBLISHED) -> None:
        self._changed = changed
        self._images = images
        self.jobs = Mirror(self.read_job, self._job_changed)
        self.pods = {namespace: Mirror(_pod, self._pod_changed) for namespace in namespaces or ("",)}
        self.nodes = Mirror(nodes.view, self._node_changed)
        self._pods_of: dict[str, dict[str, PodView]] = defaultdict(dict)
        self._departed: dict[str, dict[_Place, PodView]] = {}
        self._nodes_by_name: dict[str, NodeView] = {}
        self._silent_since: dict[str, float] = {}
        self._expected = _Expected()

    @property
    def filled(self) -> bool:
        """Whether everything there was has been seen once."""
        return self.jobs.filled and self.nodes.filled and all(pods.filled for pods in self.pods.values())

    def read_job(self, obj: Mapping[str, Any]) -> JobRecord:
        """A job as the API server has it, with what this cluster adds."""
        return jobs.read(obj, self._images)

    def doubt_pods(self) -> None:
        """What is known of pods may be old: count as filled only after the next list."""
        for mirror in self.pods.values():
            mirror.filled = False

    def pods_of(self, job: JobRecord) -> tuple[PodView, ...]:
        """The job's pods. Those whose deletion the API server has accepted count as going."""
        found = self._pods_of.get(job.uid, {}).values()
        return tuple(self._expected.applied(pod) for pod in found if _is_of(pod, job))

    def departed_of(self, job: JobRecord) -> tuple[PodView, ...]:
        """Pods of the job's current attempt that are gone, as they last were; those of earlier ones are forgotten."""
        stage, current = job.status.stage, job.status.attempt
        found = self._departed.pop(job.uid, {})
        kept = {place: pod for place, pod in found.items() if pod.attempt >= current}  # a status may be behind
        if kept:
            self._departed[job.uid] = kept
        return tuple(pod for pod in kept.values() if (pod.stage, pod.attempt) == (stage, current))

    def nodes_of(self, views: Collection[PodView]) -> Mapping[str, NodeView]:
        """The nodes that those pods are bound to, as far as they are known, by name."""
        found = (self._nodes_by_name.get(name) for name in {pod.node for pod in views})
        return {
            node.name: replace(node, silent_since=self._silent_since.get(node.name, 0.0))
            for node in found
            if node is not None
        }

    def pod_answered(self, obj: Mapping[str, Any]) -> None:
        """The API server's answer to the creation of a pod, or to a question about one."""
        namespace = obj["metadata"]["namespace"]
        mirror = self.pods[namespace] if namespace in self.pods else self.pods[""]
        view = mirror.answered(obj)
        if view is not None:
            self._pod_changed(None, view)

    def is_expected(self, deletion: Deletion) -> bool:
        """Whether that deletion has been asked for already, with this grace or a shorter one."""
        return self._expected.covers(deletion)

    def expect(self, deletions: Collection[Deletion]) -> None:
        """Those pods are being deleted, though the watch does not say so yet."""
        self._expected.add(deletions)

    def despair(self, deletions: Collection[Deletion]) -> None:
        """Those deletions have failed."""
        self._expected.discard(found.uid for found in deletions)

    def expected_seconds(self, job: JobRecord) -> float | None:
        """Seconds until a deletion that should have shown by now is doubted; None if all that go do show it."""
        return self._expected.seconds(self._pods_of.get(job.uid, {}).values())

    def _job_changed(self, before: JobRecord | None, after: JobRecord | None) -> None:
        found = after or before
        if found is None:
            return
        if after is None:
            self._departed.pop(found.uid, None)
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
        self._expected.discard((pod.uid,))
        job = self.jobs.get(pod.job_uid)
        if (pod.termination is not None or pod.disruption) and job is not None and _is_of(pod, job):
            departed = self._departed.setdefault(pod.job_uid, {})
            place = (pod.stage, pod.attempt, pod.index)
            if place not in departed or departed[place].termination is None:  # the first words count
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
        elif self._nodes_by_name.get(found.name) == found:  # or it is another one by now
            del self._nodes_by_name[found.name]
        known = self._nodes_by_name.get(found.name)
        if known is None or known.ready:
            self._silent_since.pop(found.name, None)
        else:
            self._silent_since.setdefault(found.name, time.time())
        for uid, siblings in self._pods_of.items():
            if any(pod.node == found.name for pod in siblings.values()):
                self._changed(uid)


class _Expected:
    """Deletions that were asked for: until the watch says so, a pass must not ask again."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, float]] = {}

    def add(self, deletions: Collection[Deletion]) -> None:
        now = time.monotonic()
        known = {uid: found for uid, found in self._until.items() if found[1] > now}  # others went while we wrote
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
        """Seconds that its deletion is still expected to show."""
        return self._until[pod.uid][1] - time.monotonic() if pod.uid in self._until else 0.0


def _is_of(pod: PodView, job: JobRecord) -> bool:
    """Whether the job can own the pod: a uid alone is anybody's to claim, in any namespace and by any name."""
    return (pod.namespace, pod.job_name, pod.job_uid) == (job.namespace, job.name, job.uid)


def _pod(obj: Mapping[str, Any]) -> PodView | None:
    """A pod of some job; None if it only carries the label."""
    try:
        return pods.view(obj)
    except (KeyError, ValueError, TypeError, AttributeError):  # labels and owners are anybody's to write
        return None
