"""The observed state of a job: its pods sorted into the current gang and others, its deadlines, its lost nodes."""

from collections.abc import Mapping

import msgspec

from resnetboost_api.launcher import GangReport
from resnetboost_api.stage import Stage
from resnetboost_api.status import PolledProgress, Progress, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.job import Job
from resnetboost_operator.observed import launchers, pods
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.workload import WorkloadView

# Factor on startupDeadlineSeconds for a gang whose rank 0 cannot be polled: its kubelet may be unable to reach it too.
UNREACHABLE_PATIENCE = 2
# How long a node may be silent before its pods count as lost: Kubernetes needs 50 s to call it not ready, and a kubelet
# that restarts is back within seconds.
NODE_LOST_SECONDS = 30.0
# How long a scheduler may leave a whole gang of pods without a word before there probably is none of that name.
SCHEDULER_SILENT_SECONDS = 30.0


class Obstacle(msgspec.Struct, frozen=True):
    """Why the cluster did not take an object of the current attempt. `permanent`: it never will."""

    message: str
    permanent: bool = False


class Observation(msgspec.Struct, frozen=True):
    """What a cluster reports: every pod of the job, its nodes, and rank 0's progress where it was polled.

    `since` (unix seconds): the time this operator began to observe. Silence before it is no sign of a hang: the
    operator was down, or the laptop asleep.
    `obstacle`: what keeps objects of the current attempt from being created.
    `tombstones`: deleted pods as they were last seen: kubelet reports a pod's end and removes it within milliseconds.
    `unreachable`: rank 0 runs but accepts no connection (a network policy, an operator outside the cluster).
    `keeps_checkpoints`: checkpoints outlive their pods here, also those of a job without a claim.
    `workload`: Kueue's object for the job; `pod_groups`: its gang scheduler's, of all attempts.
    `gang_report`: what the leader's launcher reported last; None while there is no connection to it.
    `labelled_nodes`: how many of the cluster's nodes have the label of the job's topology constraint, None if unknown.
    `priority`: the value of the job's priority class for Kueue (`scheduling.kueue.workload.priority_class`), None if it
    has none or is not known yet. `flavors`: the ResourceFlavors known, of those that the Workload was admitted to
    (`scheduling.kueue.admission.flavor_names`).
    """

    pods: tuple[PodView, ...] = ()
    progress: PolledProgress | Progress | None = None
    since: float = 0.0
    nodes: Mapping[str, NodeView] = {}
    obstacle: Obstacle | None = None
    tombstones: tuple[PodView, ...] = ()
    unreachable: bool = False
    keeps_checkpoints: bool = False
    capabilities: Capabilities = Capabilities()
    workload: WorkloadView | None = None
    pod_groups: tuple[PodGroupView, ...] = ()
    priority: int | None = None
    flavors: Mapping[str, Flavor] = {}
    labelled_nodes: int | None = None
    gang_report: GangReport | None = None

    def is_queued(self, job: Job) -> bool:
        """Whether Kueue decides when the job runs: by the job's label, or because there is a Workload of it."""
        usable = self.capabilities.kueue and self.capabilities.kueue_enabled
        return usable and (bool(job.queue) or self.workload is not None)

    def admitted_count(self, job: Job) -> int | None:
        """How many pods Kueue has admitted, None if that is all it was asked for, or it does not decide."""
        found = self.workload
        if found is None or found.admitted is None or not self.is_queued(job):
            return None
        return found.admitted if found.admitted < found.count else None


class ObservedState(msgspec.Struct, frozen=True):
    """All input of a planning decision.

    `gang`: the pods that the current attempt uses; `tombstones`: those that are gone but whose end was seen; `stale`:
    pods of any earlier attempt, to be deleted; `kept`: finished pods of finished stages, which stay for their logs;
    `probes`: pods of the current attempt beyond its ranks, which look for room for more.
    """

    job: Job
    status: Status
    stage: Stage
    gang: tuple[PodView, ...]
    tombstones: tuple[PodView, ...]
    stale: tuple[PodView, ...]
    kept: tuple[PodView, ...]
    probes: tuple[PodView, ...]
    observation: Observation
    now: float

    @property
    def time(self) -> str:
        """Now, as Kubernetes writes it."""
        return pods.timestamp(self.now)

    @property
    def pods_attempt(self) -> int:
        """The attempt in the names and labels of the gang's objects."""
        return statuses.pods_attempt(self.status)

    @property
    def count(self) -> int:
        """World size: the number of pods in a whole gang."""
        return self.stage.device_count

    @property
    def succeeded(self) -> frozenset[int]:
        """Ranks that are done; sticky, because finished pods may be garbage-collected (training-operator #1186)."""
        return statuses.parse_indexes(self.status.ranks.succeeded)

    @property
    def missing(self) -> tuple[int, ...]:
        """Indexes without a pod, tombstone or success. A pod being deleted counts: it may still save a checkpoint."""
        there = self.succeeded | {pod.index for pod in (*self.gang, *self.tombstones)}
        return tuple(index for index in range(self.count) if index not in there)

    def ended_before(self, pod: PodView) -> bool:
        """Whether that pod's container ended in the attempt before, because its rank has not begun this one."""
        awaited = statuses.is_awaited_in_place(self.status)
        return awaited and pod.termination is not None and not pod.termination.by_launcher

    @property
    def progress(self) -> Progress | None:
        """The current attempt's progress, None before its first report."""
        return statuses.current_progress(self.status)

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether checkpoints survive the gang. Without a volume they are deleted with their pod."""
        return self.observation.keeps_checkpoints or self.job.spec.checkpoint.outlives_pods

    @property
    def is_unreachable(self) -> bool:
        """Whether all ranks run but rank 0 cannot be polled: missing progress then proves nothing."""
        whole = bool(self.gang) and not self.missing
        return self.observation.unreachable and whole and all(pod.phase == "Running" for pod in self.gang)

    @property
    def pod_groups(self) -> tuple[PodGroupView, ...]:
        """The PodGroups of the gang: one, or none where no gang scheduler is in charge."""
        return tuple(group for group in self.observation.pod_groups if group.attempt == self.pods_attempt)

    @property
    def rank_0(self) -> PodView | None:
        """The pod of index 0, which leads the training."""
        return next((pod for pod in self.gang if pod.index == 0), None)

    @property
    def polled(self) -> PodView | None:
        """The pod of rank 0 if it can be asked for its progress."""
        rank_0 = self.rank_0
        return rank_0 if rank_0 is not None and rank_0.phase == "Running" and rank_0.address else None

    @property
    def is_training(self) -> bool:
        """Whether the gang has finished a step: by rank 0's progress or, if it is unreachable, by its readiness."""
        if self.progress is not None and self.progress.heartbeat > 0:
            return True
        return self.is_unreachable and self.rank_0 is not None and self.rank_0.ready

    @property
    def unready_nodes(self) -> frozenset[str]:
        """Names of nodes that are not ready at this moment."""
        return frozenset(node.name for node in self.observation.nodes.values() if not node.ready)

    @property
    def lost_nodes(self) -> frozenset[str]:
        """Names of nodes that have not been ready for NODE_LOST_SECONDS."""
        return frozenset(name for name in self.unready_nodes if self._seconds_until_lost(name) <= 0)

    def seconds_until_deadline(self) -> float:
        """Seconds left of `activeDeadlineSeconds`; infinite without one or while suspended."""
        limit = self.job.spec.run_policy.active_deadline_seconds
        if limit is None or self.status.start_time is None:
            return float("inf")
        return pods.seconds(self.status.start_time) + limit - self.now

    def seconds_until_startup_deadline(self) -> float:
        """Seconds left to create all pods and finish a first step; collectives hang when a rank never comes."""
        running = statuses.is_true(self.status, "Running")
        if self.status.attempt_creation_time is None or self.is_training or running:
            return float("inf")
        limit = self._startup_seconds() * (UNREACHABLE_PATIENCE if self.is_unreachable else 1)
        return self._seconds_left(self.status.attempt_creation_time, limit)

    def _startup_seconds(self) -> int:
        """The startup deadline, with the time that the job gives its preflight."""
        rule, limit = self.job.spec.preflight, self.job.spec.run_policy.startup_deadline_seconds
        return limit + (rule.seconds if rule is not None else 0)

    def seconds_until_hang(self) -> float:
        """Seconds left until a training gang counts as hung; infinite before the first step or while unreachable."""
        if self.progress is None or self.progress.heartbeat == 0 or self.is_unreachable:
            return float("inf")
        return self._seconds_left(self.progress.heartbeat_time, self.job.spec.failure_policy.hang_timeout_seconds)

    def seconds_until_node_lost(self) -> float:
        """Seconds until the next unready node with pods of this job counts as lost; infinite if there is none."""
        nodes = {pod.node for pod in (*self.gang, *self.stale, *self.kept)} & (self.unready_nodes - self.lost_nodes)
        return min((self._seconds_until_lost(name) for name in nodes), default=float("inf"))

    def seconds_until_scheduler_silent(self) -> float:
        """Seconds until no scheduler has said anything about the whole gang for long; infinite once one has."""
        unheard = self.gang and not self.missing and not any(pod.looked_at for pod in self.gang)
        if not unheard or any(group.conditions for group in self.pod_groups):
            return float("inf")
        begun = max(pods.seconds(self.status.attempt_creation_time), *(pod.created for pod in self.gang))
        return begun + SCHEDULER_SILENT_SECONDS - self.now

    def _seconds_left(self, time: str | None, limit: float) -> float:
        """Seconds left of a limit that began at `time`, or when this operator began to observe if that is later."""
        return max(pods.seconds(time), self.observation.since) - self.now + limit

    def _seconds_until_lost(self, name: str) -> float:
        return self.observation.nodes[name].silent_since + NODE_LOST_SECONDS - self.now


def observe(job: Job, status: Status, observation: Observation, now: float) -> ObservedState:
    """Sort the observed pods by stage and attempt. `status` names the current stage."""
    stage = next(stage for stage in job.spec.stages if stage.name == status.stage)
    views = launchers.laid_over(observation.pods, status, observation.gang_report, now)
    gang = tuple(pod for pod in views if _is_current(pod, status) and pod.index < stage.device_count)
    probes = tuple(pod for pod in views if _is_current(pod, status) and pod.index >= stage.device_count)
    missing = set(range(stage.device_count)) - {pod.index for pod in gang}
    tombstones = tuple(pod for pod in observation.tombstones if _is_current(pod, status) and pod.index in missing)
    others = [pod for pod in views if not _is_current(pod, status)]
    kept = tuple(pod for pod in others if _is_kept(pod, status))
    stale = tuple(pod for pod in others if not _is_kept(pod, status))
    return ObservedState(job, status, stage, gang, tombstones, stale, kept, probes, observation, now)


def _is_current(pod: PodView, status: Status) -> bool:
    return (pod.stage, pod.attempt) == (status.stage, statuses.pods_attempt(status))


def _is_kept(pod: PodView, status: Status) -> bool:
    """Finished pods of finished stages stay, for their logs."""
    complete = {stage.name for stage in status.stages if stage.state == "Complete"}
    return pod.stage in complete and pod.termination is not None
