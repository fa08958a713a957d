"""Resize: end the gang as for a suspension, so that the next attempt has another number of devices.

It is nobody's failure: it counts towards nothing, and no step is lost.
"""

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Ranks, Status
from resnetboost_operator import readable, sizes
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, stop
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.conditions import RESIZING, not_running
from resnetboost_operator.planning.elastic import size


def resize(state: ObservedState) -> Plan | None:
    """The plan towards a gang of another size, None if it has the right one."""
    status = state.status
    if status.device_count is None or state.succeeded or (count := size.wanted(state)) == status.device_count:
        return None
    message = f"from {readable.plural(status.device_count, 'device')} to {count}: {_why(state, count)}"
    if status.attempt_creation_time is None:  # objects of this attempt, of another size, may exist
        return _next(state, attempts.with_next_attempt(status, state.time), count, message)
    stopped = stop.stop(state, failures.RESIZED, RESIZING, message)
    if isinstance(stopped, Plan):
        return stopped
    if stopped.attempt == status.attempt:
        stopped = attempts.with_next_attempt(stopped, state.time)
    return _next(state, stopped, count, message)


def _next(state: ObservedState, status: Status, count: int, message: str) -> Plan:
    status = replace(status, restart_time=None, resize_time=state.time, ranks=Ranks(desired=count))
    status = not_running(status, "Restarting", message, state.time)
    return Plan(status, events=(Event("Normal", "Resized", message),), wake_seconds=0.0)


def _why(state: ObservedState, count: int) -> str:
    job, whole = state.job, sizes.defined(state.job, state.stage)
    placeable = state.status.placeable_devices
    if placeable is not None and placeable < min(job.most_devices, whole):
        return f"there is room for {count} of {min(job.most_devices, whole)}"
    if count == min(job.most_devices, whole):
        return f"device.count is {job.most_devices}"
    return f"device.count is {job.most_devices}, and {count} is the largest number up to it that divides {whole}"
