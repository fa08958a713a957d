"""Goodput: the share of the devices' time that went into steps that count, and what the rest was lost to.

Every second from the creation of an attempt to its end is counted once, at its end, and every second between attempts
when the next one begins (`timekeeping`). All times are in the status, so any operator counts the same.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Goodput, Loss, Status
from resnetboost_operator import lost_time
from resnetboost_operator import status as statuses
from resnetboost_operator.lost_time import DETECTION, OVERHEAD, PREFLIGHT, QUEUEING, REPLAY, RESTART
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.state import ObservedState

# Rank 0 is polled every 15 s: a gang whose heartbeat was not seen to move for longer, and for a step, stood still.
STILL_SECONDS = 30.0
_STOPPED = frozenset(found.name for found in failures.STOPPED)


class _Steps(msgspec.Struct, frozen=True):
    """How many optimizer steps an attempt did, and how many of them need not be repeated.

    `seconds` is the mean duration of a step, 0 if it is unknown.
    """

    kept: int
    done: int
    seconds: float


class _Spans(msgspec.Struct, frozen=True):
    """The seconds of an attempt in the order they went by: their sum is its whole time."""

    waited: int
    start: int
    training: int
    detection: int


def account(state: ObservedState, failure: str | None, kept_step: int | None) -> Goodput:
    """The goodput with the current attempt, which ends now, added.

    `failure` is the class that ended it, None for a success; `kept_step` its last step that need not be repeated. The
    time of a step is the mean that rank 0 last reported, so the account is an estimate; its sum is exact.
    """
    status = state.status
    before = lost_time.complete(status.goodput or Goodput(), state.count)
    if status.attempt_creation_time is None:
        return before
    steps = _steps(status, kept_step)
    spans = _spans(state, steps, failure)
    productive = min(spans.training, round(min(steps.kept * steps.seconds, spans.training)))
    repeated = round(min(spans.training - productive, _repeated_seconds(state, steps, spans, failure)))
    ends = {(DETECTION, failure or ""): spans.detection, (REPLAY, failure or ""): repeated}
    rest = {(OVERHEAD, ""): spans.training - productive - repeated}
    seconds = spans.waited + spans.start + spans.training + spans.detection
    found = replace(
        before,
        attempt_seconds=before.attempt_seconds + seconds,
        productive_seconds=before.productive_seconds + productive,
        productive_device_seconds=before.productive_device_seconds + productive * state.count,
        repeated_steps=before.repeated_steps + steps.done - steps.kept,
    )
    for losses in (_start_losses(status, spans, failure), ends, rest):
        found = _with_losses(found, losses, state.count)
    return lost_time.with_percent(found)


def with_wait(status: Status, cause: str, failure: str, seconds: int, count: int) -> Status:
    """The status with a wait between attempts, of seconds times `count` ranks, added to its goodput.

    `failure` is the class that ended the attempt before the wait, '' if there was none or it succeeded.
    """
    if seconds <= 0:
        return status
    if cause == RESTART and not failure:
        cause = OVERHEAD
    found = _with_losses(lost_time.complete(status.goodput or Goodput(), count), {(cause, failure): seconds}, count)
    return replace(status, goodput=lost_time.with_percent(found))


def cause_of_start(status: Status) -> str:
    """The class that ended the attempt before the current one; '' if that succeeded or there was none.

    Within a stage no attempt follows one that succeeded. Numbers without a record are of attempts that never began
    (`in_place.abandoned`).
    """
    last = status.attempts[-1] if status.attempts else None
    return last.reason if last is not None and last.stage == status.stage else ""


def fault_time(state: ObservedState) -> str | None:
    """When the first rank of the current attempt failed, None if none is known to have. By its node's clock."""
    ended = [pod.termination for pod in (*state.gang, *state.tombstones) if pod.phase != "Succeeded"]
    times = [end.finished_at for end in ended if end is not None and end.finished_at and end.exit_code != 0]
    return pods.timestamp(min(times)) if times else None


def training_time(status: Status, now: float) -> str:
    """When the current attempt began its first step, if it was first seen to train now: some steps are done by then."""
    steps = _steps(status, None)
    earliest = min(now, pods.seconds(status.attempt_creation_time))
    return pods.timestamp(max(earliest, now - min(steps.done * steps.seconds, now - earliest)))


def _steps(status: Status, kept_step: int | None) -> _Steps:
    progress = statuses.current_progress(status)
    first = progress.resumed_step if progress is not None else None  # where the attempt began
    if first is None:
        first = statuses.earlier_checkpoint_step(status) or 0
    kept = max(0, (kept_step or 0) - first)
    done = max(kept, (progress.step if progress is not None else 0) - first)
    return _Steps(kept, done, (progress.step_seconds if progress is not None else None) or 0.0)


def _spans(state: ObservedState, steps: _Steps, failure: str | None) -> _Spans:
    """Cut the attempt's time at the times in the status. What lies outside of it, as clocks differ, is cut off."""
    status = state.status
    begin, end = pods.seconds(status.attempt_creation_time), pods.seconds(state.time)
    left = whole = max(0, round(end - begin))
    waited = min(left, status.attempt_waited_seconds + _seconds(status.attempt_waiting_time, state.time))
    left -= waited
    detection = min(left, _detection_seconds(state, failure))
    left -= detection
    if status.attempt_training_time is not None:
        start = round(pods.seconds(status.attempt_training_time) - begin) - waited
    else:  # it ended before anybody saw it train
        start = left - round(min(steps.done * steps.seconds, left))
    start = max(0, min(left, start))
    training = left - start
    assert waited + start + training + detection == whole
    return _Spans(waited, start, training, detection)


def _detection_seconds(state: ObservedState, failure: str | None) -> int:
    if failure is None or failure in _STOPPED:
        return 0
    return _seconds(_end_of_work(state), state.time)


def _end_of_work(state: ObservedState) -> str | None:
    """When a gang that failed stopped to train: as its first rank failed, or before if it stood still by then."""
    failed, moved = state.status.fault_time or fault_time(state), _moved_time(state)
    if failed is None or moved is None:
        return failed or moved
    progress = statuses.current_progress(state.status)
    step = min((progress.step_seconds if progress is not None else None) or 0.0, STILL_SECONDS)
    return moved if _seconds(moved, failed) > STILL_SECONDS + step else failed


def _moved_time(state: ObservedState) -> str | None:
    """When a gang that is heard of was last seen to move, None if it never was."""
    progress = statuses.current_progress(state.status)
    heard = progress is not None and progress.heartbeat and not state.is_unreachable
    return progress.heartbeat_time if progress is not None and heard else None


def _repeated_seconds(state: ObservedState, steps: _Steps, spans: _Spans, failure: str | None) -> float:
    """Seconds of steps that do not count, with those since the last report: the gang trained on until it failed."""
    repeated = (steps.done - steps.kept) * steps.seconds
    progress, moved = statuses.current_progress(state.status), _moved_time(state)
    if failure is None or failure in _STOPPED or not steps.seconds or moved is None or progress is None:
        return repeated
    unheard = _seconds(moved, state.time) - spans.detection if progress.state == "Training" else 0
    return repeated + max(0, unheard)


def _start_losses(status: Status, spans: _Spans, failure: str | None) -> dict[tuple[str, str], int]:
    """What the start was lost to: its own failure if it failed, else (also if it was stopped) the failure before it."""
    before = cause = cause_of_start(status)
    progress = statuses.current_progress(status)
    reported = (progress.preflight_seconds if progress is not None else None) or 0.0
    checked = round(min(reported, spans.start))
    trained = spans.training or status.attempt_training_time is not None
    cause = cause if trained or failure is None or failure in _STOPPED else failure
    rest = (RESTART, cause) if cause else (OVERHEAD, "")
    return {(QUEUEING, before): spans.waited, (PREFLIGHT, cause): checked, rest: spans.start - checked}


def _seconds(since: str | None, until: str) -> int:
    return 0 if since is None else max(0, round(pods.seconds(until) - pods.seconds(since)))


def corrected(status: Status, step: int, count: int, *, keeps: bool) -> Status:
    """The status with its goodput corrected by the step at which the current attempt of `count` ranks resumed.

    The attempt before may have saved more than was reported (while no operator was leading), or what it saved may be
    unreadable. `keeps`: whether checkpoints outlive pods; if not, the record tells of none.
    """
    last = status.attempts[-1] if status.attempts else None
    if last is None or last.stage != status.stage:
        return status
    before = max(last.checkpoint_step or 0, last.resumed_step or 0)
    if step == before:
        return status
    done, known = max(last.last_step or 0, step), max(last.last_step or 0, before)
    # Without a step it failed while it loaded, and may heal: what it resumed from was saved by an earlier one.
    record = replace(last, last_step=done if last.last_step is not None else None)
    if keeps:
        record = replace(record, checkpoint_step=step)
    status = replace(status, attempts=(*status.attempts[:-1], record))
    if status.goodput is None:
        return status
    again = status.goodput.repeated_steps + (done - step) - (known - before)
    found = lost_time.complete(status.goodput, count)
    account = _moved(found, last.reason, round((step - before) * (last.step_seconds or 0.0)), count)
    return replace(status, goodput=replace(account, repeated_steps=max(0, again)))


def _moved(account: Goodput, failure: str, seconds: int, count: int) -> Goodput:
    """The account with that many more seconds productive (fewer, if negative) instead of lost to that failure."""
    if seconds < 0:
        back = min(-seconds, account.productive_seconds, account.productive_device_seconds // count)
        return _shifted(account, (REPLAY, failure), -back, count)
    # Most likely it was known as repeated; then as rest or, of an older operator, under the name of the failure.
    for cause in ((REPLAY, failure), (OVERHEAD, ""), (DETECTION, failure), (failure, "")):
        lost = {(loss.reason, loss.failure): loss.device_seconds for loss in account.lost}
        part = min(seconds, lost.get(cause, 0) // count)
        account, seconds = _shifted(account, cause, part, count), seconds - part
    return account


def _shifted(account: Goodput, cause: tuple[str, str], seconds: int, count: int) -> Goodput:
    """The account with that many seconds productive that were lost to that cause; the other way if negative."""
    found = replace(
        account,
        productive_seconds=account.productive_seconds + seconds,
        productive_device_seconds=account.productive_device_seconds + seconds * count,
    )
    return lost_time.with_percent(_with_losses(found, {cause: -seconds}, count))


def _with_losses(account: Goodput, seconds: Mapping[tuple[str, str], int], count: int) -> Goodput:
    """The account with these seconds of `count` ranks lost, by cause and failure."""
    sums = {(loss.reason, loss.failure): loss.device_seconds for loss in account.lost}
    for cause, more in seconds.items():
        sums[cause] = sums.get(cause, 0) + more * count
    lost = (
        Loss(reason=reason, failure=failure, device_seconds=sums[reason, failure]) for reason, failure in sorted(sums)
    )
    return replace(account, lost=tuple(loss for loss in lost if loss.device_seconds))
