"""Suspend a job: every rank saves a checkpoint and exits. Resume it: its active time begins anew."""

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Ranks, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure as observed_failure
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, deletions, wakeup
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.conditions import not_running, with_condition
from resnetboost_operator.planning.policies import registry


def suspend(state: ObservedState) -> Plan:
    """Delete every pod, whose rank then saves a checkpoint. The job is suspended once no pod is left."""
    status, present = state.status, (*state.gang, *state.stale)
    delete = deletions.delete(state, status, present)
    if statuses.is_true(status, "Suspended"):
        return Plan(status, delete=delete, wake_seconds=wakeup.node_wake_seconds(state))
    failure = observed_failure.first_culprit(state.gang, (), tombstones=state.tombstones, stopping=True)
    if failure is not None and _is_own_fault(failure):
        status = _with_record(state, failure)  # it failed before, or while it saved: that must not be lost
    elif (state.gang or state.tombstones) and status.attempt_start_time is None:
        status = replace(status, attempt_start_time=state.time)  # never seen whole, but it may have trained
    if present:
        message = f"waiting for {readable.listed([pod.name for pod in present])} to stop; {_saved(state, status)}"
        events = _warning(state, status)
        status = not_running(status, "Suspending", message, state.time)
        return Plan(status, delete=delete, events=events, wake_seconds=wakeup.node_wake_seconds(state))
    if status.attempt_start_time is not None:
        status = _with_record(state, Failure(failures.SUSPENDED))
    return _suspended(state, status)


def resumed(status: Status, now: str) -> Status:
    """The status with the condition Suspended set to False, if the job was suspended."""
    if not statuses.is_true(status, "Suspended"):
        return status
    return with_condition(status, "Suspended", False, "Resumed", "runPolicy.suspend is false", now)


def _is_own_fault(failure: Failure) -> bool:
    return registry.policy_of(failure.failure_class).uses_budget and not observed_failure.is_victim(failure)


def _with_record(state: ObservedState, failure: Failure) -> Status:
    """Record the current attempt and go on to the next number. It does not count as a restart."""
    record = attempts.record(failure, state.status, state.time)
    return attempts.with_next_attempt(attempts.with_record(state, record), state.time)


def _suspended(state: ObservedState, status: Status) -> Plan:
    message = f"stopped on request; {_saved(state, status)}"
    status = replace(
        status,
        start_time=None,
        restart_time=None,
        attempt_creation_time=None,
        ranks=Ranks(desired=state.count),
    )
    status = not_running(status, "Suspended", message, state.time)
    status = with_condition(status, "Suspended", True, "Suspended", message, state.time)
    return Plan(status, events=(Event("Normal", "Suspended", message),))


def _warning(state: ObservedState, status: Status) -> tuple[Event, ...]:
    """An event at the beginning of the suspension, if training will be lost."""
    if state.keeps_checkpoints or not _trained(status) or status.phase == "Suspending":
        return ()
    return (Event("Warning", "ProgressLost", _saved(state, status)),)


def _saved(state: ObservedState, status: Status) -> str:
    """What the job will resume from."""
    if not state.keeps_checkpoints:
        trained = _trained(status)
        if not trained:
            return "nothing was trained yet"
        lost = f"it loses {readable.plural(trained, 'step')} of training with its pods"
        return f"{lost}, because there is no checkpoint.claimName; resumed, it begins again at step 0"
    known = statuses.current_progress(status)
    own = known.checkpoint_step if known is not None else None
    step = statuses.highest([own, statuses.earlier_checkpoint_step(status)])
    return "there is no checkpoint yet" if step is None else f"the newest checkpoint is of step {step}"


def _trained(status: Status) -> int:
    """Steps of the running gang, or of the one that the suspension ended."""
    progress = statuses.current_progress(status)
    if progress is not None:
        return progress.step
    last = status.attempts[-1] if status.attempts else None
    return (last.last_step or 0) if last is not None and last.reason == failures.SUSPENDED.name else 0
