"""Restart the whole gang after a failure, or fail the job where the failure's policy refuses a restart."""

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Attempt, Ranks, Status
from resnetboost_operator import readable
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import (
    attempts,
    backoff,
    deletions,
    exclusion,
    failure_rules,
    finish,
    preflight,
    wakeup,
)
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.conditions import not_running
from resnetboost_operator.planning.policies import registry
from resnetboost_operator.planning.policies.policy import Policy


def restart_or_fail(state: ObservedState, failure: Failure) -> Plan:
    """Record the failure, then restart the gang or fail the job, as the rules or the failure's class say."""
    decision = failure_rules.decide(state.job.spec.failure_policy, failure)
    record = attempts.record(failure, state.status, state.time, decision.rule)
    policy = registry.POLICIES[decision.action]
    if refusal := policy.refusal(state, failure, record):
        return finish.fail(state, refusal.reason, f"{attempts.describe(record)}; {refusal.message}", record)
    return _restart(state, record, policy)


def _restart(state: ObservedState, record: Attempt, policy: Policy) -> Plan:
    """Delete the whole gang and set the time of the next one."""
    status = _with_restart(state, record, policy)
    delay = backoff.delay_seconds(state.job.spec.failure_policy, status.stage, status.attempts)
    status = replace(status, restart_time=pods.timestamp(state.now + delay))
    message = (
        f"{attempts.describe(record)}; the gang restarts in {delay} s{_by_rule(record, policy)}{_loss(state, record)}"
    )
    status = not_running(status, "Restarting", message, state.time)
    event = Event("Warning", "GangRestart", message)
    wake = sooner(float(delay), wakeup.node_wake_seconds(state))
    return Plan(status, delete=deletions.delete(state, status, state.gang), events=(event,), wake_seconds=wake)


def _with_restart(state: ObservedState, record: Attempt, policy: Policy) -> Status:
    status = attempts.with_next_attempt(attempts.with_record(state, record), state.time)
    return replace(
        _with_exclusion(state, status, record, policy),
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + policy.uses_budget,
        ranks=Ranks(desired=state.count),
    )


def _with_exclusion(state: ObservedState, status: Status, record: Attempt, policy: Policy) -> Status:
    """The status with the nodes that the next attempt avoids: one more, or one less if pods found no place."""
    if record.reason == failures.NOT_SCHEDULED.name:
        return exclusion.without_oldest(status)
    if record.reason == failures.PREFLIGHT_FAILED.name:
        return preflight.with_exclusions(status, preflight.current(state.status), state)
    settings = state.job.spec.failure_policy.node_exclusion
    return exclusion.after_failure(status, settings, record, state.now, at_once=policy.excludes_node)


def _by_rule(record: Attempt, policy: Policy) -> str:
    if record.rule is None:
        return ""
    unknown = (
        ", on the same nodes because nobody knows which failed" if policy.excludes_node and not record.node else ""
    )
    return f" by rule {record.rule}{unknown}"


def _loss(state: ObservedState, record: Attempt) -> str:
    if not record.last_step or state.keeps_checkpoints:
        return ""
    steps = readable.plural(record.last_step, "step")
    return f" and loses {steps} with its pods, because there is no checkpoint.claimName"
