"""Timekeeping: write into the status since when the job waits and trains, and count the waits between attempts.

The plan's first and last step. The time of an attempt is counted at its end, from what is written here (`goodput`).
"""

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.lost_time import QUEUEING, RESTART
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import goodput, placement
from resnetboost_operator.planning.conditions import QUEUED

# Reasons of the condition Running of a job whose pods may not exist yet.
_QUEUEING = frozenset({QUEUED, "FlavorUnknown", placement.NO_GANG_SCHEDULER})
# Reasons of the condition Running while nobody has said that there is no room for the pods.
_COMING = frozenset({"Starting", "Restarting", "GangIncomplete", "Publishing"})


def begun(state: ObservedState) -> ObservedState:
    """The state with the wait before its attempt counted, if that was to begin at a later time and has begun by now."""
    status, begin = state.status, state.status.attempt_creation_time
    if begin is None or status.waiting_time is None or _wait(status, state.now):
        return state
    return replace(state, status=replace(_counted(state, status, RESTART, begin), waiting_time=None))


def kept(state: ObservedState, after: Status) -> Status:
    """The decided status with its times. `state` is what it was decided from."""
    status = _with_wait(state, _with_dropped_attempt(state, after))
    if status.attempt_creation_time is None or _begin(status) != _begin(state.status):
        times = {"attempt_training_time": None, "attempt_waiting_time": None, "attempt_waited_seconds": 0}
        status = replace(status, **times)
    else:
        status = _with_training(state, _with_room(state, status))
    return _with_fault(state, status)


def _begin(status: Status) -> tuple[int, str | None]:
    return status.attempt, status.attempt_creation_time


def _with_dropped_attempt(state: ObservedState, after: Status) -> Status:
    """Count an attempt that ends without a record: its job is suspended, evicted or fails before all pods exist."""
    before = state.status
    if before.attempt_creation_time is None or statuses.is_terminal(before) or after.attempt != before.attempt:
        return after
    goes_on = after.attempt_creation_time is not None and not statuses.is_terminal(after)
    if goes_on or after.goodput != before.goodput:
        return after
    return replace(after, goodput=goodput.account(state, None, state.progress.step if state.progress else None))


def _with_wait(state: ObservedState, after: Status) -> Status:
    """Begin, end or go on with a wait between attempts. A change of its kind ends one and begins another."""
    kind, known = _wait(after, state.now), _wait(state.status, state.now)
    if after.waiting_time is not None and kind != known:
        after = replace(_counted(state, after, known, state.time), waiting_time=None)
    return replace(after, waiting_time=(after.waiting_time or state.time) if kind else None)


def _counted(state: ObservedState, status: Status, cause: str, until: str) -> Status:
    """The status with its wait until then in the goodput."""
    seconds = round(pods.seconds(until) - pods.seconds(status.waiting_time))
    return goodput.with_wait(status, cause, goodput.cause_of_start(state.status), seconds, state.count)


def _wait(status: Status, now: float) -> str:
    """What a job without an attempt waits for: Queueing or Restart; '' if it has one, or should not run."""
    begin = status.attempt_creation_time
    if statuses.is_terminal(status) or statuses.is_true(status, "Suspended"):
        return ""
    if begin is not None:
        return RESTART if pods.seconds(begin) > now else ""
    running = statuses.condition(status, "Running")
    return QUEUEING if running is None or running.reason in _QUEUEING else RESTART


def _with_room(state: ObservedState, status: Status) -> Status:
    """Begin or end a wait of the current attempt for room."""
    since = status.attempt_waiting_time
    if _lacks_room(state, status):
        return replace(status, attempt_waiting_time=since or state.time)
    if since is None:
        return status
    waited = status.attempt_waited_seconds + max(0, round(pods.seconds(state.time) - pods.seconds(since)))
    return replace(status, attempt_waiting_time=None, attempt_waited_seconds=waited)


def _lacks_room(state: ObservedState, status: Status) -> bool:
    """Whether a quota or a scheduler has refused a pod of a gang that has not trained yet."""
    running = statuses.condition(status, "Running")
    if running is None or running.status == "True" or status.attempt_training_time is not None:
        return False
    refused = state.observation.obstacle is not None or any(not pod.node for pod in state.gang)
    return refused and running.reason not in _COMING


def _with_training(state: ObservedState, status: Status) -> Status:
    if status.attempt_training_time is not None or not statuses.is_true(status, "Running"):
        return status
    return replace(status, attempt_training_time=goodput.training_time(status, state.now))


def _with_fault(state: ObservedState, status: Status) -> Status:
    """Keep when a failure happened whose explanation is awaited: its pods may be gone by then."""
    if status.failure_time is None:
        return replace(status, fault_time=None)
    return replace(status, fault_time=status.fault_time or goodput.fault_time(state))
