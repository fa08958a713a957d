"""Stop a whole gang that did nothing wrong: every rank saves a checkpoint and exits. For suspension and eviction."""

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.failures import FailureClass
from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure as observed_failure
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, deletions, wakeup
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.conditions import not_running


def stop(state: ObservedState, ended: FailureClass, reason: str, why: str = "") -> Plan | Status:
    """Delete every pod, whose rank then saves a checkpoint. While pods are left: the plan, with that `reason` of the
    condition Running. Then: the status with a record of the attempt, `ended` because of `why` unless a rank failed by
    its own fault.
    """
    status, present = state.status, (*state.gang, *state.stale)
    delete = deletions.delete(state, status, present)
    gang = [pod for pod in state.gang if not state.ended_before(pod)]
    tombstones = [pod for pod in state.tombstones if not state.ended_before(pod)]
    failure = observed_failure.first_culprit(gang, (), tombstones=tombstones, stopping=True)
    if failure is not None and _is_own_fault(failure):
        status = _with_record(state, failure)  # it failed before, or while it saved: that must not be lost
    elif (gang or tombstones) and status.attempt_start_time is None and not statuses.is_awaited_in_place(status):
        status = replace(status, attempt_start_time=state.time)  # never seen whole, but it may have trained
    if present:
        waiting = f"waiting for {readable.listed([pod.name for pod in present])} to stop; {saved(state, status)}"
        events = _warning(state, status)
        status = not_running(status, reason, f"{why}; {waiting}" if why else waiting, state.time)
        return Plan(status, delete=delete, events=events, wake_seconds=wakeup.node_wake_seconds(state))
    began = status.attempt_start_time is not None or statuses.is_in_place(status)  # maybe on some ranks only
    return _with_record(state, Failure(ended, message=why)) if began else status


def saved(state: ObservedState, status: Status) -> str:
    """What the job will go on from."""
    if not state.keeps_checkpoints:
        trained = _trained(status)
        if not trained:
            return "nothing was trained yet"
        lost = f"it loses {readable.plural(trained, 'step')} of training with its pods"
        return f"{lost}, because there is no checkpoint.claimName or url; resumed, it begins again at step 0"
    known = statuses.current_progress(status)
    own = known.checkpoint_step if known is not None else None
    step = statuses.highest([own, statuses.earlier_checkpoint_step(status)])
    return "there is no checkpoint yet" if step is None else f"the newest checkpoint is of step {step}"


def _is_own_fault(failure: Failure) -> bool:
    """No disruption, which has an external cause, and no consequence of the stop."""
    return failure.failure_class.policy != "disruption" and not observed_failure.is_victim(failure)


def _with_record(state: ObservedState, failure: Failure) -> Status:
    """Record the current attempt and go on to the next number. It does not count as a restart."""
    record = attempts.record(failure, state.status, state.time)
    return attempts.with_next_attempt(attempts.with_record(state, record), state.time)


def _warning(state: ObservedState, status: Status) -> tuple[Event, ...]:
    """An event at the beginning, if training will be lost."""
    if state.keeps_checkpoints or not _trained(status) or status.phase == "Suspending":
        return ()
    return (Event("Warning", "ProgressLost", saved(state, status)),)


def _trained(status: Status) -> int:
    """Steps of the running gang, or of the one that was stopped."""
    progress = statuses.current_progress(status)
    if progress is not None:
        return progress.step
    last = status.attempts[-1] if status.attempts else None
    stopped = [found.name for found in failures.STOPPED]
    return (last.last_step or 0) if last is not None and last.reason in stopped else 0
