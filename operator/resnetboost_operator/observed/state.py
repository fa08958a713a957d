"""What is, brought into the shape decisions need: a job, its pods sorted, its deadlines; it decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from resnetboost_operator import api
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure, pods
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.planning import goodput
from resnetboost_operator.status import Progress, Ranks, StageStatus, Status

# Where not even kubelet may have a way to rank 0, a gang that seems to do nothing gets so many times its time to start.
UNHEARD_PATIENCE = 2
# How long a node may be silent before its pods count as lost: Kubernetes needs 50 s to call it not ready, and a kubelet
# that restarts is back within seconds.
NODE_LOST_SECONDS = 30.0


class Observed(msgspec.Struct, frozen=True):
    """What a cluster tells: every pod of the job, its nodes, and rank 0's progress where it was polled.

    `since` (unix seconds): nobody looked before. A gang that went on unwatched while the operator was down, or the
    laptop asleep, has not been silent. `refusal`: why the cluster did not take an object of the current attempt;
    `invalid`: it never will.
    `departed`: pods that are gone, as they last were: kubelet tells a pod's end and removes it within milliseconds.
    `unreachable`: rank 0 runs, but no connection to it comes about (a network policy, an operator outside the cluster).
    `keeps_checkpoints`: checkpoints outlive their pods here, also those of a job without a claim.
    """

    pods: tuple[PodView, ...] = ()
    progress: Progress | None = None
    since: float = 0.0
    nodes: Mapping[str, NodeView] = {}
    refusal: str = ""
    invalid: bool = False
    departed: tuple[PodView, ...] = ()
    unreachable: bool = False
    keeps_checkpoints: bool = False


class World(msgspec.Struct, frozen=True):
    """Everything a decision may look at.

    `gang`: pods of the current attempt; `departed`: those that are gone but told their end; `stale`: pods of any
    earlier attempt that must go; `kept`: finished ones of finished stages, which stay for their logs.
    """

    job: api.Job
    status: Status
    stage: api.Stage
    gang: tuple[PodView, ...]
    departed: tuple[PodView, ...]
    stale: tuple[PodView, ...]
    kept: tuple[PodView, ...]
    observed: Observed
    now: float

    @property
    def time(self) -> str:
        """Now, as Kubernetes writes it."""
        return pods.timestamp(self.now)

    @property
    def count(self) -> int:
        """World size: the pods a whole gang has."""
        return self.stage.device_count

    @property
    def succeeded(self) -> frozenset[int]:
        """Ranks that are done; sticky, because finished pods may be garbage-collected (training-operator #1186)."""
        return statuses.parse_indexes(self.status.ranks.succeeded)

    @property
    def missing(self) -> tuple[int, ...]:
        """Indexes of which nothing is known. A pod being deleted still has its checkpoint to write."""
        there = self.succeeded | {pod.index for pod in (*self.gang, *self.departed)}
        return tuple(index for index in range(self.count) if index not in there)

    @property
    def progress(self) -> Progress | None:
        """The current attempt's progress, if it told any."""
        return self.status.progress if failure.current(self.status.progress, self.status) else None

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether a new gang goes on from what the one before has saved; without a volume that goes with its pod."""
        return _keeps_checkpoints(self.job, self.observed)

    @property
    def is_unheard(self) -> bool:
        """Whether all ranks run but cannot be asked: what they do not tell is then no sign of anything."""
        whole = bool(self.gang) and not self.missing
        return self.observed.unreachable and whole and all(pod.phase == "Running" for pod in self.gang)

    @property
    def rank_0(self) -> PodView | None:
        """The pod of index 0, which leads the training."""
        return next((pod for pod in self.gang if pod.index == 0), None)

    @property
    def is_training(self) -> bool:
        """Whether the gang has done a step, as rank 0 tells or, where that cannot be heard, its kubelet."""
        if self.progress is not None and self.progress.heartbeat > 0:
            return True
        return self.is_unheard and self.rank_0 is not None and self.rank_0.ready

    @property
    def unready_nodes(self) -> frozenset[str]:
        """Names of nodes whose kubelet is not heard of at this moment."""
        return frozenset(node.name for node in self.observed.nodes.values() if not node.ready)

    @property
    def lost_nodes(self) -> frozenset[str]:
        """Names of nodes that were silent for long."""
        return frozenset(name for name in self.unready_nodes if self._seconds_until_lost(name) <= 0)

    def seconds_until_deadline(self) -> float:
        """Seconds left of `activeDeadlineSeconds`; infinite without one or while suspended."""
        limit = self.job.spec.run_policy.active_deadline_seconds
        if limit is None or self.status.start_time is None:
            return float("inf")
        return pods.seconds(self.status.start_time) + limit - self.now

    def seconds_until_startup_deadline(self) -> float:
        """Seconds left to create all pods and finish a first step; collectives hang when a rank never comes."""
        if self.status.attempt_creation_time is None or self.is_training or self.status.phase == "Running":
            return float("inf")
        limit = self.job.spec.run_policy.startup_deadline_seconds * (UNHEARD_PATIENCE if self.is_unheard else 1)
        return self._minus_seconds_seen(self.status.attempt_creation_time) + limit

    def seconds_until_hang(self) -> float:
        """Seconds left until a training gang counts as hung."""
        if self.progress is None or self.progress.heartbeat == 0 or self.is_unheard:
            return float("inf")  # not training yet, or nobody can tell
        return (
            self._minus_seconds_seen(self.progress.heartbeat_time) + self.job.spec.failure_policy.hang_timeout_seconds
        )

    def seconds_until_node_lost(self) -> float:
        """Seconds until a silent node with pods of this job counts as lost, if one is silent."""
        nodes = {pod.node for pod in (*self.gang, *self.stale, *self.kept)} & (self.unready_nodes - self.lost_nodes)
        return min((self._seconds_until_lost(name) for name in nodes), default=float("inf"))

    def _minus_seconds_seen(self, time: str | None) -> float:
        """Minus the seconds since a time, or since somebody looks at all."""
        return max(pods.seconds(time), self.observed.since) - self.now

    def _seconds_until_lost(self, name: str) -> float:
        return self.observed.nodes[name].silent_since + NODE_LOST_SECONDS - self.now


def see(job: api.Job, status: Status, observed: Observed, now: float) -> World:
    """Sort the pods and bring the status' counts and progress up to date."""
    status = _begun(job, status, now)
    stage = next(stage for stage in job.spec.stages if stage.name == status.stage)
    gang = tuple(pod for pod in observed.pods if _is_current(pod, status) and pod.index < stage.device_count)
    missing = set(range(stage.device_count)) - {pod.index for pod in gang}
    departed = tuple(pod for pod in observed.departed if _is_current(pod, status) and pod.index in missing)
    if not statuses.is_terminal(status):
        progress = _progress(status, observed.progress, (*gang, *departed), now)
        if progress is not None and not _keeps_checkpoints(job, observed):
            progress = replace(progress, checkpoint_step=None)
        if progress is not None and failure.current(progress, status) and _keeps_checkpoints(job, observed):
            status = _with_resumption(status, progress, stage.device_count)
        stages = _with_skipped(status, progress, (*gang, *departed))
        status = replace(status, ranks=_ranks(stage, status, gang, departed), progress=progress, stages=stages)
    others = [pod for pod in observed.pods if not _is_current(pod, status)]
    kept = tuple(pod for pod in others if _is_kept(pod, status))
    stale = tuple(pod for pod in others if not _is_kept(pod, status))
    return World(job, status, stage, gang, departed, stale, kept, observed, now)


def _begun(job: api.Job, status: Status, now: float) -> Status:
    """The status of a job that was never planned before, or that is resumed: its active time begins now."""
    status = replace(status, observed_generation=job.generation)
    if not status.stage:
        stages = tuple(StageStatus(stage.name) for stage in job.spec.stages)
        status = replace(status, phase="Pending", stage=stages[0].name, stages=stages)
    if job.spec.run_policy.suspend or statuses.is_terminal(status):
        return status
    if statuses.is_true(status, "Suspended"):
        time = pods.timestamp(now)
        status = statuses.with_condition(status, "Suspended", False, "Resumed", "runPolicy.suspend is false", time)
    return status if status.start_time is not None else replace(status, start_time=pods.timestamp(now))


def _ranks(stage: api.Stage, status: Status, gang: Sequence[PodView], departed: Sequence[PodView]) -> Ranks:
    done = {pod.index for pod in (*gang, *departed) if pod.phase == "Succeeded"}
    done |= statuses.parse_indexes(status.ranks.succeeded)
    return Ranks(
        desired=stage.device_count,
        running=sum(pod.phase == "Running" for pod in gang),
        ready=sum(pod.ready for pod in gang),
        failed=sum(pod.phase == "Failed" for pod in gang),
        succeeded=statuses.format_indexes(done),
    )


def _progress(status: Status, polled: Progress | None, gang: Sequence[PodView], now: float) -> Progress | None:
    """The newest progress known, from polls and from the last words of pods that ended.

    `heartbeat_time` moves only when the trainer's heartbeat does; steps never go back within an attempt.
    """
    known = status.progress if failure.current(status.progress, status) else None
    if polled is not None and failure.current(polled, status):
        alive = known is None or polled.heartbeat != known.heartbeat
        since = pods.timestamp(now) if alive or known is None else known.heartbeat_time
        saved = failure.highest([polled.checkpoint_step, known.checkpoint_step if known is not None else None])
        furthest = max(polled.step, known.step if known is not None else 0)
        resumed = polled.resumed_step if known is None or polled.resumed_step is not None else known.resumed_step
        known = replace(polled, heartbeat_time=since, checkpoint_step=saved, step=furthest, resumed_step=resumed)
    reports = [pod.termination.report for pod in gang if pod.termination is not None]
    step = failure.highest([report.step for report in reports])
    saved = failure.highest([report.checkpoint_step for report in reports])
    if step is None and saved is None:
        return known if known is not None else status.progress
    known = known or Progress(stage=status.stage, attempt=status.attempt)
    return replace(
        known,
        step=failure.highest([known.step, step]) or 0,
        checkpoint_step=failure.highest([known.checkpoint_step, saved]),
        **_last_figures(known, gang),
    )


_FIGURES = ("total_steps", "resumed_step", "loss", "accuracy", "top1", "top5", "test_loss")


def _with_resumption(status: Status, progress: Progress, count: int) -> Status:
    """Corrected as soon as the gang tells where it goes on, and not again."""
    known = status.progress if failure.current(status.progress, status) else None
    if progress.resumed_step is None or (known is not None and known.resumed_step is not None):
        return status
    return goodput.corrected(status, progress.resumed_step, count)


def _last_figures(known: Progress, gang: Sequence[PodView]) -> dict[str, Any]:
    """What rank 0 measured until its end, which is later than any poll: a short job may end before the first one."""
    ended = next((pod.termination for pod in gang if pod.index == 0 and pod.termination is not None), None)
    if ended is None or (ended.report.step or 0) < known.step:
        return {}
    told = {name: getattr(ended.report, name) for name in _FIGURES}
    return {name: value for name, value in told.items() if value is not None}


def _keeps_checkpoints(job: api.Job, observed: Observed) -> bool:
    return observed.keeps_checkpoints or job.spec.checkpoint.claim_name is not None


def _with_skipped(status: Status, progress: Progress | None, gang: Sequence[PodView]) -> tuple[StageStatus, ...]:
    """The stages with the images that the current attempt skipped; an earlier one may have met more of them."""
    told = progress.skipped_images if progress is not None and failure.current(progress, status) else 0
    ended = {mark for pod in gang if pod.termination is not None for mark in pod.termination.report.skipped}
    return tuple(
        replace(stage, skipped_images=max(stage.skipped_images, told, len(ended)))
        if stage.name == status.stage
        else stage
        for stage in status.stages
    )


def _is_current(pod: PodView, status: Status) -> bool:
    return (pod.stage, pod.attempt) == (status.stage, status.attempt)


def _is_kept(pod: PodView, status: Status) -> bool:
    """Finished pods of finished stages stay, for their logs."""
    complete = {stage.name for stage in status.stages if stage.state == "Complete"}
    return pod.stage in complete and pod.termination is not None
