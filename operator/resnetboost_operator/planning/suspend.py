"""Suspend a job: every rank saves a checkpoint and exits. Resume it: its active time begins anew."""

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Ranks, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import deletions, stop, wakeup
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.planning.conditions import not_running, with_condition


def suspend(state: ObservedState) -> Plan:
    """Stop the gang. The job is suspended once no pod is left."""
    status = state.status
    if statuses.is_true(status, "Suspended"):
        delete = deletions.delete(state, status, (*state.gang, *state.stale))
        return Plan(status, delete=delete, wake_seconds=wakeup.node_wake_seconds(state))
    stopped = stop.stop(state, failures.SUSPENDED, "Suspending")
    return stopped if isinstance(stopped, Plan) else _suspended(state, stopped)


def resumed(status: Status, now: str) -> Status:
    """The status with the condition Suspended set to False, if the job was suspended."""
    if not statuses.is_true(status, "Suspended"):
        return status
    return with_condition(status, "Suspended", False, "Resumed", "runPolicy.suspend is false", now)


def _suspended(state: ObservedState, status: Status) -> Plan:
    message = f"stopped on request; {stop.saved(state, status)}"
    status = replace(
        status,
        start_time=None,
        restart_time=None,
        attempt_creation_time=None,
        placeable_devices=None,
        ranks=Ranks(desired=state.count),
    )
    status = not_running(status, "Suspended", message, state.time)
    status = with_condition(status, "Suspended", True, "Suspended", message, state.time)
    return Plan(status, events=(Event("Normal", "Suspended", message),))
