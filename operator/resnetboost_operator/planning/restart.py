"""Restart the whole gang after a failure, or fail the job where the failure's policy refuses a restart."""

from msgspec.structs import replace

from resnetboost_api.status import Attempt, Ranks, RollBack, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, backoff, deletions, finish, wakeup
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.conditions import not_running
from resnetboost_operator.planning.policies import registry, roll_back


def restart_or_fail(state: ObservedState, failure: Failure) -> Plan:
    """Record the failure, then restart the gang or fail the job."""
    record = attempts.record(failure, state.status, state.time)
    policy = registry.policy_of(failure.failure_class)
    if refusal := policy.refusal(state, failure, record):
        return finish.fail(state, refusal.reason, f"{attempts.describe(record)}; {refusal.message}", record)
    if (back := policy.roll_back(state, failure, record)) is not None:
        return _roll_back(state, replace(record, rolled_back=True), back)
    return _restart(state, record, policy.uses_budget)


def _roll_back(state: ObservedState, record: Attempt, back: RollBack) -> Plan:
    """Delete the whole gang, and start the next one at once: a wait would heal nothing."""
    rule = state.job.spec.failure_policy.divergence
    assert rule is not None, "only failurePolicy.divergence lets a job go back"
    status = _with_restart(state, record, uses_budget=False)
    saved = statuses.stage_status(status, record.stage).checkpoint_step
    usable = None if saved is None else min(saved, back.at_most_step)
    status = statuses.with_stage(status, record.stage, checkpoint_step=usable)
    status = replace(status, roll_backs=(*status.roll_backs, back), restart_time=state.time)
    message = f"{attempts.describe(record)}; {roll_back.described(back, status, rule)}{_loss(state, record)}"
    status = not_running(status, "Restarting", message, state.time)
    event = Event("Warning", "RolledBack", message)
    wake = sooner(0.0, wakeup.node_wake_seconds(state))
    return Plan(status, delete=deletions.delete(state, status, state.gang), events=(event,), wake_seconds=wake)


def _restart(state: ObservedState, record: Attempt, uses_budget: bool) -> Plan:
    """Delete the whole gang and set the time of the next one."""
    status = _with_restart(state, record, uses_budget)
    delay = backoff.delay_seconds(state.job.spec.failure_policy, status.stage, status.attempts)
    status = replace(status, restart_time=pods.timestamp(state.now + delay))
    message = f"{attempts.describe(record)}; the gang restarts in {delay} s{_loss(state, record)}"
    status = not_running(status, "Restarting", message, state.time)
    event = Event("Warning", "GangRestart", message)
    wake = sooner(float(delay), wakeup.node_wake_seconds(state))
    return Plan(status, delete=deletions.delete(state, status, state.gang), events=(event,), wake_seconds=wake)


def _with_restart(state: ObservedState, record: Attempt, uses_budget: bool) -> Status:
    status = attempts.with_next_attempt(attempts.with_record(state, record), state.time)
    return replace(
        status,
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + uses_budget,
        ranks=Ranks(desired=state.count),
    )


def _loss(state: ObservedState, record: Attempt) -> str:
    if not record.last_step or state.keeps_checkpoints:
        return ""
    steps = readable.plural(record.last_step, "step")
    return f" and loses {steps} with its pods, because there is no checkpoint.claimName"
