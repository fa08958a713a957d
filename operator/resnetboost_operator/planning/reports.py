"""Update the status with what the pods report: ranks, training progress, skipped images, resumption."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_api.status import Progress, Ranks, StageStatus, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import goodput
from resnetboost_operator.planning.faults import preflight, stragglers

_FIGURES = ("total_steps", "resumed_step", "loss", "accuracy", "top1", "top5", "test_loss", "best")


def with_progress(state: ObservedState) -> ObservedState:
    """The state with ranks, progress and stages of its status updated; unchanged for a finished job."""
    status = state.status
    ended = [pod for pod in (*state.gang, *state.tombstones) if not state.ended_before(pod)]
    if statuses.is_terminal(status):
        return state
    progress = _progress(status, _kept(state.observation.progress), ended, state.now)
    if progress is not None and not state.keeps_checkpoints:
        progress = replace(progress, checkpoint_step=None)
    if progress is not None and statuses.is_current(progress, status):
        status = _with_arrival(_with_resumption(state, progress), progress)
    stages = _with_best(_with_skipped(status, progress, ended), status, progress)
    status = preflight.with_result(replace(state, status=status))
    return replace(state, status=replace(status, ranks=_ranks(state), progress=progress, stages=stages))


def _kept(polled: Progress | None) -> Progress | None:
    """The part of a rank's answer that is kept as its progress."""
    return None if polled is None else Progress(**{name: getattr(polled, name) for name in Progress.__struct_fields__})


def _ranks(state: ObservedState) -> Ranks:
    done = {pod.index for pod in (*state.gang, *state.tombstones) if pod.phase == "Succeeded"}
    return Ranks(
        desired=state.count,
        running=sum(pod.phase == "Running" and pod.termination is None for pod in state.gang),
        ready=sum(pod.ready for pod in state.gang),
        failed=sum(pod.phase == "Failed" or _failed_in_place(pod) for pod in state.gang),
        succeeded=statuses.format_indexes(done | state.succeeded),
    )


def _failed_in_place(pod: PodView) -> bool:
    return pod.termination is not None and pod.termination.by_launcher


def _progress(status: Status, polled: Progress | None, gang: Sequence[PodView], now: float) -> Progress | None:
    """The newest progress, from polls and from the termination messages of pods that ended.

    `heartbeat_time` moves only when the trainer's heartbeat does; steps never go back within an attempt.
    """
    known = statuses.current_progress(status)
    if polled is not None and statuses.is_current(polled, status):
        alive = known is None or polled.heartbeat != known.heartbeat
        since = pods.timestamp(now) if alive or known is None else known.heartbeat_time
        saved = statuses.highest([polled.checkpoint_step, known.checkpoint_step if known is not None else None])
        furthest = max(polled.step, known.step if known is not None else 0)
        resumed = polled.resumed_step if known is None or polled.resumed_step is not None else known.resumed_step
        slow = stragglers.reported(polled.stragglers, known.stragglers if known is not None else (), gang, now)
        known = replace(
            polled, heartbeat_time=since, checkpoint_step=saved, step=furthest, resumed_step=resumed, stragglers=slow
        )
    reports = [pod.termination.report for pod in gang if pod.termination is not None]
    step = statuses.highest([report.step for report in reports])
    saved = statuses.highest([report.checkpoint_step for report in reports])
    if step is None and saved is None:
        return known if known is not None else status.progress
    known = known or Progress(stage=status.stage, attempt=status.attempt)
    return replace(
        known,
        step=statuses.highest([known.step, step]) or 0,
        checkpoint_step=statuses.highest([known.checkpoint_step, saved]),
        **_last_figures(known, gang),
    )


def _last_figures(known: Progress, gang: Sequence[PodView]) -> dict[str, Any]:
    """Figures of rank 0's termination message. It is later than any poll: a short job may end before the first one."""
    ended = next((pod.termination for pod in gang if pod.index == 0 and pod.termination is not None), None)
    if ended is None or (ended.report.step or 0) < known.step:
        return {}
    reported = {name: getattr(ended.report, name) for name in _FIGURES}
    return {name: value for name, value in reported.items() if value is not None}


def _with_resumption(state: ObservedState, progress: Progress) -> Status:
    """Correct the goodput once, when the gang first reports the step it resumed at."""
    status, known = state.status, statuses.current_progress(state.status)
    if progress.resumed_step is None or (known is not None and known.resumed_step is not None):
        return status
    return goodput.corrected(status, progress.resumed_step, state.count, keeps=state.keeps_checkpoints)


def _with_arrival(status: Status, progress: Progress) -> Status:
    """Record, once, which step the last roll-back went back to."""
    last = status.roll_backs[-1] if status.roll_backs else None
    if last is None or last.to_step is not None or last.stage != status.stage or progress.resumed_step is None:
        return status
    status = statuses.with_stage(status, last.stage, checkpoint_step=progress.resumed_step or None)
    return replace(status, roll_backs=(*status.roll_backs[:-1], replace(last, to_step=progress.resumed_step)))


def _with_skipped(status: Status, progress: Progress | None, gang: Sequence[PodView]) -> tuple[StageStatus, ...]:
    """The stages with the images that the current attempt skipped; an earlier one may have met more of them."""
    reported = progress.skipped_images if progress is not None and statuses.is_current(progress, status) else 0
    ended = {mark for pod in gang if pod.termination is not None for mark in pod.termination.report.skipped}
    return tuple(
        replace(stage, skipped_images=max(stage.skipped_images, reported, len(ended)))
        if stage.name == status.stage
        else stage
        for stage in status.stages
    )


def _with_best(stages: Sequence[StageStatus], status: Status, progress: Progress | None) -> tuple[StageStatus, ...]:
    """The stages with the best checkpoint that the current attempt reports; until it does, with the one known."""
    found = progress.best if progress is not None and statuses.is_current(progress, status) else None
    return tuple(
        replace(stage, best=found) if found is not None and stage.name == status.stage else stage for stage in stages
    )
