"""Goodput: the share of the devices' time that went into steps that count, and what the rest was lost to."""

from collections.abc import Sequence

from msgspec.structs import replace

from resnetboost_api.status import Goodput, Loss, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods

# What a successful attempt spends outside its steps: starting, compiling, evaluating, saving.
OVERHEAD = "Overhead"


def account(status: Status, end_time: str, count: int, failure: str | None, kept_step: int | None) -> Goodput:
    """The goodput with the current attempt of `count` ranks added.

    `failure` is the class that ended the attempt, None for a success; `kept_step` its last step that need not be
    repeated. The time of a step is the mean that rank 0 last reported, so the account is an estimate.
    """
    before = status.goodput or Goodput()
    if status.attempt_creation_time is None:
        return before
    progress = statuses.current_progress(status)
    first = progress.resumed_step if progress is not None else None  # where the attempt began
    if first is None:
        first = statuses.earlier_checkpoint_step(status) or 0
    kept = max(0, (kept_step or 0) - first)
    done = max(kept, (progress.step if progress is not None else 0) - first)
    seconds = max(0, round(pods.seconds(end_time) - pods.seconds(status.attempt_creation_time)))
    step_seconds = (progress.step_seconds if progress is not None else None) or 0.0
    productive = round(min(seconds, kept * step_seconds))
    total, good = before.attempt_seconds + seconds, before.productive_seconds + productive
    return Goodput(
        attempt_seconds=total,
        productive_seconds=good,
        percent=100 * good // total if total else 0,
        repeated_steps=before.repeated_steps + done - kept,
        lost=_with_loss(before.lost, failure or OVERHEAD, (seconds - productive) * count),
    )


def corrected(status: Status, step: int, count: int) -> Status:
    """The status with its goodput corrected by the step at which the current attempt of `count` ranks resumed.

    The attempt before may have saved more than was reported (while no operator was leading), or what it saved may be
    unreadable.
    """
    last = status.attempts[-1] if status.attempts else None
    if last is None or last.stage != status.stage or step == (last.checkpoint_step or 0):
        return status
    began = last.resumed_step or 0
    before = max(last.checkpoint_step or 0, began)
    done, known = max(last.last_step or 0, step), max(last.last_step or 0, before)
    record = replace(last, last_step=done, checkpoint_step=step)
    status = replace(status, attempts=(*status.attempts[:-1], record))
    if status.goodput is None:
        return status
    again = status.goodput.repeated_steps + (done - step) - (known - before)
    account = _moved(status.goodput, last.reason, round((step - before) * (last.step_seconds or 0.0)), count)
    return replace(status, goodput=replace(account, repeated_steps=max(0, again)))


def _moved(account: Goodput, reason: str, seconds: int, count: int) -> Goodput:
    """The account with that many more seconds productive (fewer, if negative) instead of lost to that reason."""
    lost = next((found.device_seconds for found in account.lost if found.reason == reason), 0)
    seconds = max(-account.productive_seconds, min(seconds, lost // count))
    good = account.productive_seconds + seconds
    percent = 100 * good // account.attempt_seconds if account.attempt_seconds else 0
    left = _with_loss(account.lost, reason, -seconds * count)
    return replace(account, productive_seconds=good, percent=percent, lost=left)


def _with_loss(lost: Sequence[Loss], reason: str, device_seconds: int) -> tuple[Loss, ...]:
    known = {found.reason: found.device_seconds for found in lost}
    if device_seconds:
        known[reason] = known.get(reason, 0) + device_seconds
    return tuple(Loss(reason, seconds) for reason, seconds in sorted(known.items()) if seconds)
