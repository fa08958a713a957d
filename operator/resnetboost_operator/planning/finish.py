"""Finish a job: complete it, or fail it with the record of its last attempt."""

from msgspec.structs import replace

from resnetboost_api.status import Attempt, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, cleanup, wakeup
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.conditions import not_running, with_condition


def complete(state: ObservedState, status: Status) -> Plan:
    """Complete the job after its last stage."""
    count = len(status.stages)
    message = f"all {count} stages are complete" if count > 1 else f"stage {status.stage} is complete"
    return _finish(state, status, "Complete", "StagesComplete", message, Event("Normal", "Complete", message))


def fail(state: ObservedState, reason: str, message: str, record: Attempt | None) -> Plan:
    """Fail the job. `record` is that of the attempt that was running, if one was."""
    status = attempts.with_record(state, record) if record is not None else state.status
    status = statuses.with_stage(status, status.stage, state="Failed")
    status = replace(status, ranks=replace(status.ranks, running=0, ready=0))
    return _finish(state, status, "Failed", reason, message, Event("Warning", reason, message))


def _finish(state: ObservedState, status: Status, kind: str, reason: str, message: str, event: Event) -> Plan:
    """Set the condition of the job's end, `kind`, for good."""
    status = replace(status, completion_time=state.time)
    status = not_running(status, kind, message, state.time)
    status = with_condition(status, kind, True, reason, message, state.time)
    left, end = cleanup.seconds_to_live(state, 0.0), cleanup.seconds_to_end(state, status)
    wake = sooner(left, end, wakeup.node_wake_seconds(state))
    return Plan(status, delete=cleanup.obsolete_pods(state, status), events=(event,), wake_seconds=wake)
