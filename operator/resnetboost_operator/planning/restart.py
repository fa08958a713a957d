"""Restart the whole gang after a failure, in place or with new pods; or fail the job where the policy refuses it."""

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
    in_place,
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
    delay = backoff.delay_seconds(state.job.spec.failure_policy, state.status.stage, (*state.status.attempts, record))
    status = _counted(state, record, policy, delay)
    by_rule = _by_rule(record, policy)
    if why := in_place.obstacle(state, status, failure, record):
        return _with_new_pods(state, status, record, delay, by_rule, why)
    return _in_place(state, status, record, delay, by_rule)


def _counted(state: ObservedState, record: Attempt, policy: Policy, delay: int) -> Status:
    """The status with the record, one restart more, the nodes to avoid, and the time of the next attempt."""
    status = attempts.with_record(state, record)
    return replace(
        _with_exclusion(state, status, record, policy),
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + policy.uses_budget,
        restart_time=pods.timestamp(state.now + delay),
        ranks=Ranks(desired=state.count),
    )


def _in_place(state: ObservedState, status: Status, record: Attempt, delay: int, by_rule: str) -> Plan:
    """Start every rank again in the pod it has. The launchers are told once the status is written."""
    message = f"{attempts.describe(record)}; the gang restarts in place in {delay} s{by_rule}"
    status = in_place.with_next_attempt(status, status.restart_time or state.time)
    status = not_running(status, "Restarting", message, state.time)
    wake = wakeup.wake_seconds(replace(state, status=status))
    return Plan(status, events=(Event("Warning", "GangRestart", message),), wake_seconds=sooner(float(delay), wake))


def _with_new_pods(state: ObservedState, status: Status, record: Attempt, delay: int, by_rule: str, why: str) -> Plan:
    """Delete the whole gang; the next one is created after the back-off."""
    status = attempts.with_next_attempt(status, state.time)
    reason = f"; it gets new pods because {why}" if state.job.has_launchers else ""
    message = f"{attempts.describe(record)}; the gang restarts in {delay} s{by_rule}{_loss(state, record)}{reason}"
    status = not_running(status, "Restarting", message, state.time)
    event = Event("Warning", "GangRestart", message)
    wake = sooner(float(delay), wakeup.node_wake_seconds(state))
    return Plan(status, delete=deletions.delete(state, status, state.gang), events=(event,), wake_seconds=wake)


def _with_exclusion(state: ObservedState, status: Status, record: Attempt, policy: Policy) -> Status:
    """The status with the nodes that the next attempt avoids: one more, or one less if pods found no place."""
    if record.reason == failures.NOT_SCHEDULED.name:
        return exclusion.without_oldest(status)
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
