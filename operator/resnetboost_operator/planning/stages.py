"""Stages: keep the result of a complete one and go on with the next."""

from msgspec.structs import replace

from resnetboost_api.status import Ranks, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, finish, goodput
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.conditions import not_running


def complete(state: ObservedState) -> Plan:
    """All ranks are done: keep the stage's result, then begin the next stage or complete the job."""
    status = _with_result(state)
    stages, early = state.job.spec.stages, _stopped_early(status)
    if state.stage == stages[-1]:
        plan = finish.complete(state, status)
        return replace(plan, events=(*early, *plan.events))
    following = stages[stages.index(state.stage) + 1]
    status = replace(
        attempts.with_next_attempt(status, state.time),
        stage=following.name,
        restart_time=None,
        ranks=Ranks(desired=following.device_count),
    )
    message = f"stage {state.status.stage} is complete; stage {status.stage} begins"
    status = not_running(status, "StageComplete", message, state.time)
    return Plan(status, events=(*early, Event("Normal", "StageComplete", message)), wake_seconds=0.0)


def _stopped_early(status: Status) -> tuple[Event, ...]:
    """The event of a stage that ended before its last epoch."""
    found = statuses.stage_status(status, status.stage).stopped_early
    if found is None:
        return ()
    return (Event("Normal", "StoppedEarly", f"stage {status.stage} ended at step {found.step}: {found.message}"),)


def _with_result(state: ObservedState) -> Status:
    """The status with the stage's final evaluation, from rank 0's termination message."""
    last_step = state.progress.step if state.progress is not None else None
    account = goodput.account(state, None, last_step)
    status = replace(state.status, goodput=account)
    ended = next((pod.termination for pod in (*state.gang, *state.tombstones) if pod.index == 0), None)
    if ended is None:
        return statuses.with_stage(status, status.stage, state="Complete")
    report = ended.report
    result = {"top1": report.top1, "top5": report.top5, "test_loss": report.test_loss}
    early = report.stopped_early
    if state.progress is not None:
        progress = state.progress
        step, epoch = max(progress.step, progress.total_steps), max(progress.epoch, float(progress.total_epochs))
        if early is not None:
            step, epoch = progress.step, progress.epoch
        done = {"step": step, "epoch": epoch, "percent": 100, "eta_seconds": 0}
        measured = {name: value for name, value in result.items() if value is not None}
        status = replace(status, progress=replace(progress, state="Finished", **done, **measured))
    return statuses.with_stage(status, status.stage, state="Complete", stopped_early=early, **result)
