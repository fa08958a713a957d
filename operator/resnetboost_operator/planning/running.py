"""Watch over a whole gang: poll rank 0 and set the condition Running."""

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import deletions, pending, wakeup
from resnetboost_operator.planning.actions import Plan
from resnetboost_operator.planning.conditions import with_condition

# How often rank 0 is polled once it trains: as often as people look.
POLL_RUNNING_SECONDS = 15.0

TRAINING = "Training"  # the reason of the condition Running while all is well


def watch(state: ObservedState) -> Plan:
    """Plan for a gang whose pods have all been seen: from now on a missing pod counts as lost."""
    status, seconds = pending.with_reason(state, state.status), wakeup.POLL_STARTING_SECONDS
    if state.is_training or statuses.is_true(state.status, "Running"):
        status, seconds = _running(state), _poll_running_seconds(state)
    going, wake = deletions.delete(state, status, state.stale), wakeup.wake_seconds(state)
    return Plan(status, delete=going, wake_seconds=wake, poll=state.polled, poll_seconds=seconds)


def _poll_running_seconds(state: ObservedState) -> float:
    """Several polls must fit into the hang timeout, or a gang would count as hung between two of them."""
    return min(POLL_RUNNING_SECONDS, state.job.spec.failure_policy.hang_timeout_seconds / 3)


def _running(state: ObservedState) -> Status:
    """The condition Running becomes True with the first step, so that people see when the gang really trains."""
    if state.is_unreachable:
        known = state.rank_0 is not None and state.rank_0.ready
        reason, message = pending.UNHEARD_TRAINING if known else pending.UNHEARD
    else:
        reason, message = TRAINING, f"all {state.count} ranks train"
    return with_condition(state.status, "Running", True, reason, message, state.time)
