"""Restart the whole gang after a failure, in place or with new pods; or fail the job where the policy refuses it."""

import msgspec
from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Attempt, Ranks, RollBack, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, deletions, exclusion, finish, wakeup
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.conditions import not_running
from resnetboost_operator.planning.faults import backoff, failure_rules, in_place, preflight
from resnetboost_operator.planning.faults.policies import registry, roll_back
from resnetboost_operator.planning.faults.policies.policy import Policy


def restart_or_fail(state: ObservedState, failure: Failure) -> Plan:
    """Record the failure, then restart the gang or fail the job, as the rules or the failure's class say."""
    decision = failure_rules.decide(state.job.spec.failure_policy, failure)
    record = attempts.record(failure, state.status, state.time, decision.rule)
    policy = registry.POLICIES[decision.action]
    if refusal := policy.refusal(state, failure, record):
        return finish.fail(state, refusal.reason, f"{attempts.describe(record)}; {refusal.message}", record)
    back = policy.roll_back(state, failure, record)
    record = replace(record, rolled_back=back is not None)
    restart = _Restart(record, _delay(state, record, back), "GangRestart", _by_rule(record, policy))
    status = _counted(state, restart, policy, uses_budget=policy.uses_budget and back is None)
    if back is not None:
        status, restart = _with_roll_back(state, status, restart, back)
    if why := in_place.obstacle(state, status, failure, record):
        return _with_new_pods(state, status, restart, why)
    return _in_place(state, status, restart)


class _Restart(msgspec.Struct, frozen=True):
    """What people are told of a restart: the record, the wait in seconds, the event's reason, and what else is done."""

    record: Attempt
    delay: int
    event: str
    note: str


def _delay(state: ObservedState, record: Attempt, back: RollBack | None) -> int:
    """Seconds to wait before the next attempt; none before a roll-back or with a node more: a wait heals nothing."""
    if back is not None or _is_lift(state, record):
        return 0
    return backoff.delay_seconds(state.job.spec.failure_policy, state.status.stage, (*state.status.attempts, record))


def _counted(state: ObservedState, restart: _Restart, policy: Policy, *, uses_budget: bool) -> Status:
    """The status with the record, one restart more, the nodes to avoid, and the time of the next attempt."""
    status = attempts.with_record(state, restart.record)
    return replace(
        _with_exclusion(state, status, restart.record, policy),
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + uses_budget,
        restart_time=pods.timestamp(state.now + restart.delay),
        ranks=Ranks(desired=state.count),
    )


def _with_roll_back(state: ObservedState, status: Status, restart: _Restart, back: RollBack) -> tuple[Status, _Restart]:
    """The status with the roll-back: checkpoints after it count no more."""
    saved = statuses.stage_status(status, back.stage).checkpoint_step
    usable = None if saved is None else min(saved, back.at_most_step)
    status = statuses.with_stage(status, back.stage, checkpoint_step=usable)
    status = replace(status, roll_backs=(*status.roll_backs, back))
    note = f"{restart.note}; {roll_back.described(back, status, roll_back.settings(state, restart.record))}"
    return status, replace(restart, event="RolledBack", note=note)


def _in_place(state: ObservedState, status: Status, restart: _Restart) -> Plan:
    """Start every rank again in the pod it has. The launchers are told once the status is written."""
    message = f"{attempts.describe(restart.record)}; the gang restarts in place in {restart.delay} s{restart.note}"
    status = in_place.with_next_attempt(status, status.restart_time or state.time)
    status = not_running(status, "Restarting", message, state.time)
    wake = sooner(float(restart.delay), wakeup.wake_seconds(replace(state, status=status)))
    return Plan(status, events=(Event("Warning", restart.event, message),), wake_seconds=wake)


def _with_new_pods(state: ObservedState, status: Status, restart: _Restart, why: str) -> Plan:
    """Delete the whole gang; the next one is created after the back-off."""
    status = attempts.with_next_attempt(status, state.time)
    reason = f"; it gets new pods because {why}" if state.job.has_launchers else ""
    ended = f"{attempts.describe(restart.record)}; the gang restarts in {restart.delay} s"
    message = f"{ended}{restart.note}{_loss(state, restart.record)}{reason}"
    status = not_running(status, "Restarting", message, state.time)
    event = Event("Warning", restart.event, message)
    wake = sooner(float(restart.delay), wakeup.node_wake_seconds(state))
    return Plan(status, delete=deletions.delete(state, status, state.gang), events=(event,), wake_seconds=wake)


def _with_exclusion(state: ObservedState, status: Status, record: Attempt, policy: Policy) -> Status:
    """The status with the nodes that the next attempt avoids: one more, or one less if pods found no place."""
    if record.reason == failures.NOT_SCHEDULED.name:
        return exclusion.without_oldest(status) if _is_lift(state, record) else status
    if record.reason == failures.PREFLIGHT_FAILED.name:
        return preflight.with_exclusions(status, preflight.current(state.status), state)
    settings = state.job.spec.failure_policy.node_exclusion
    at_once = policy.excludes_node or record.reason == failures.STRAGGLER.name
    return exclusion.after_failure(status, settings, record, state.now, at_once=at_once)


def _is_lift(state: ObservedState, record: Attempt) -> bool:
    """Whether pods found no place because they avoid nodes: each time they avoid one less."""
    return record.reason == failures.NOT_SCHEDULED.name and exclusion.lifts(state)


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
    return f" and loses {steps} with its pods, because there is no checkpoint.claimName or url"
