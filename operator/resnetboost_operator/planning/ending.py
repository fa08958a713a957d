"""How an attempt or a job ends: evidence first, then a restart of the whole gang, the next stage, or the end."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_operator import failures, readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure as observed_failure
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import World
from resnetboost_operator.planning import actions, backoff, goodput
from resnetboost_operator.planning.actions import Deletion, Event, Plan, sooner
from resnetboost_operator.status import Attempt, Ranks, StageStatus, Status

# Characters of a rank's last words in conditions and events, and of an API server's, whose sentences are long.
_RANK_WORDS, _SERVER_WORDS = 300, 700


def attempt(world: World, failure: Failure) -> Plan:
    """Write the evidence, then restart the whole gang or give up."""
    record = observed_failure.attempt(failure, world.status, world.time)
    reason, refusal = _refusal(world, failure, record)
    if reason:
        return fail(world, reason, refusal, record)
    status = _next_attempt(world, record, failure.verdict.policy == "restart")
    delay = backoff.delay_seconds(world.job.spec.failure_policy, status.stage, status.attempts)
    status = replace(status, phase="Restarting", restart_time=pods.timestamp(world.now + delay))
    lost = f" and {_LOST.format(readable.plural(record.last_step or 0, 'step'))}" if _is_lost(world, record) else ""
    message = f"{_describe(record)}; the gang restarts in {delay} s{lost}"
    status = not_running(world, status, "Restarting", message)
    event = Event("Warning", "GangRestart", message)
    wake = sooner(float(delay), node_wake_seconds(world))
    return Plan(status, delete=actions.remove(world, status, world.gang), events=(event,), wake_seconds=wake)


_LOST = "loses {} with its pods, because there is no checkpoint.claimName"


def _is_lost(world: World, record: Attempt) -> bool:
    return bool(record.last_step) and not world.keeps_checkpoints


def leave(world: World, failure: Failure) -> Status:
    """Record the current attempt; what comes next is another one, though nothing was restarted."""
    record = observed_failure.attempt(failure, world.status, world.time)
    return statuses.with_next_attempt(_with_record(world, record), world.time)


def exceed_deadline(world: World) -> Plan:
    """Out of time, and nobody's failure: the ranks may still save what they have."""
    limit = world.job.spec.run_policy.active_deadline_seconds
    message = f"the job was active for more than activeDeadlineSeconds: {limit}"
    record = observed_failure.attempt(Failure(failures.DEADLINE, message=message), world.status, world.time)
    return fail(world, failures.DEADLINE.name, message, record if world.gang else None)


def fail(world: World, reason: str, message: str, record: Attempt | None) -> Plan:
    """The job is over."""
    status = _with_record(world, record) if record is not None else world.status
    status = with_stage(status, status.stage, state="Failed")
    ranks = replace(status.ranks, running=0, ready=0)
    status = replace(status, phase="Failed", completion_time=world.time, ranks=ranks)
    status = not_running(world, status, "Failed", message)
    status = statuses.with_condition(status, "Failed", True, reason, message, world.time)
    return _end(world, status, Event("Warning", reason, message))


def stage(world: World) -> Plan:
    """All ranks are done: keep the result, go on with the next stage or complete the job."""
    status = _with_result(world)
    stages = world.job.spec.stages
    if world.stage == stages[-1]:
        return _complete(world, status)
    following = stages[stages.index(world.stage) + 1]
    ranks = Ranks(desired=following.device_count)
    status = replace(
        statuses.with_next_attempt(status, world.time), stage=following.name, restart_time=None, ranks=ranks
    )
    message = f"stage {world.status.stage} is complete; stage {status.stage} begins"
    status = not_running(world, status, "StageComplete", message)
    return Plan(status, events=(Event("Normal", "StageComplete", message),), wake_seconds=0.0)


def over(world: World) -> Plan:
    """A job that is over: nothing runs for it any more, and one day it goes itself."""
    left = _seconds_to_live(world, world.now - pods.seconds(world.status.completion_time))
    expire, wake = left is not None and left <= 0, sooner(left, node_wake_seconds(world))
    return Plan(world.status, delete=_leftovers(world, world.status), expire=expire, wake_seconds=wake)


def not_running(world: World, status: Status, reason: str, message: str) -> Status:
    """The condition Running is False, and why."""
    return statuses.with_condition(status, "Running", False, reason, message, world.time)


def with_stage(status: Status, name: str, **changes: Any) -> Status:
    """The named stage's status with other values."""
    changed = replace(stage_status(status, name), **changes)
    return replace(status, stages=tuple(changed if found.name == name else found for found in status.stages))


def stage_status(status: Status, name: str) -> StageStatus:
    """The named stage's status."""
    return next(found for found in status.stages if found.name == name)


def wake_seconds(world: World) -> float | None:
    """Seconds until one of a living gang's deadlines may strike, if there is any."""
    return sooner(
        _finite(world.seconds_until_deadline()),
        _finite(world.seconds_until_startup_deadline()),
        _finite(world.seconds_until_hang()),
        node_wake_seconds(world),
    )


def node_wake_seconds(world: World) -> float | None:
    """Seconds until pods on a silent node need not be waited for: all that time does for pods that are to go."""
    return _finite(world.seconds_until_node_lost())


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else max(0.0, seconds)


def _refusal(world: World, failure: Failure, record: Attempt) -> tuple[str, str]:
    """Why the gang is not restarted, as (reason, sentence); ('', '') if it is."""
    policy, text = world.job.spec.failure_policy, _describe(record)
    if failure.verdict.policy == "fail":
        return failure.verdict.name, f"{text}; a restart would end the same way"
    if _is_repetition(failure, record, world.status.attempts):
        return failures.REPEATED, f"{text}; the attempt before ended the same way at the same step"
    exhausted = world.status.restarts_count_towards_max >= policy.max_restarts
    if failure.verdict.policy == "restart" and exhausted:
        return "MaxRestartsExceeded", f"{text}; maxRestarts: {policy.max_restarts} is used up"
    return "", ""


def _is_repetition(failure: Failure, record: Attempt, attempts: Sequence[Attempt]) -> bool:
    """The same error at the same step twice: a bug or a bad sample, which no restart heals."""
    if failure.verdict not in (failures.INTERNAL_ERROR, failures.OUT_OF_MEMORY, failures.STORAGE_ERROR):
        return False
    before = attempts[-1] if attempts else None
    if before is None or record.last_step is None:
        return False
    return (before.reason, before.stage, before.last_step) == (record.reason, record.stage, record.last_step)


def _describe(record: Attempt) -> str:
    """One line a person understands: attempt 0: rank 1 on node-a ended with Killed (exit code 137) after step 120."""
    who = f"rank {record.rank}" if record.rank is not None else "the gang"
    where = f" on {record.node}" if record.node else ""
    code = f" (exit code {record.exit_code})" if record.exit_code is not None else ""
    step = f" after step {record.last_step}" if record.last_step is not None else ""
    killed = record.exit_code is not None and record.exit_code > 128  # its last log line is no explanation
    killed = killed and record.reason != failures.OUT_OF_MEMORY.name
    why = [] if killed else record.message.strip().splitlines()
    return f"attempt {record.attempt}: {who}{where} ended with {record.reason}{code}{step}" + (
        f": {readable.shortened(why[-1], _SERVER_WORDS if record.rank is None else _RANK_WORDS)}" if why else ""
    )


def _next_attempt(world: World, record: Attempt, counts: bool) -> Status:
    status = statuses.with_next_attempt(_with_record(world, record), world.time)
    return replace(
        status,
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + counts,
        ranks=Ranks(desired=world.count),
    )


def _with_record(world: World, record: Attempt) -> Status:
    account = goodput.account(world.status, world.time, world.count, record.reason, record.checkpoint_step)
    status = replace(world.status, goodput=account)
    saved = observed_failure.highest([record.checkpoint_step, observed_failure.earlier_checkpoint_step(status)])
    return statuses.with_attempt(with_stage(status, record.stage, checkpoint_step=saved), record)


def _complete(world: World, status: Status) -> Plan:
    count = len(status.stages)
    message = f"all {count} stages are complete" if count > 1 else f"stage {status.stage} is complete"
    status = replace(status, phase="Complete", completion_time=world.time)
    status = not_running(world, status, "Complete", message)
    status = statuses.with_condition(status, "Complete", True, "StagesComplete", message, world.time)
    return _end(world, status, Event("Normal", "Complete", message))


def _end(world: World, status: Status, event: Event) -> Plan:
    wake = sooner(_seconds_to_live(world, 0.0), node_wake_seconds(world))
    return Plan(status, delete=_leftovers(world, status), events=(event,), wake_seconds=wake)


def _with_result(world: World) -> Status:
    """The stage's final evaluation, from rank 0's own last words."""
    last_step = world.progress.step if world.progress is not None else None
    account = goodput.account(world.status, world.time, world.count, None, last_step)
    status = replace(world.status, goodput=account)
    ended = next((pod.termination for pod in (*world.gang, *world.departed) if pod.index == 0), None)
    if ended is None:
        return with_stage(status, status.stage, state="Complete")
    report = ended.report
    result = {"top1": report.top1, "top5": report.top5, "test_loss": report.test_loss}
    if world.progress is not None:
        progress = world.progress
        step, epoch = max(progress.step, progress.total_steps), max(progress.epoch, float(progress.total_epochs))
        done = {"step": step, "epoch": epoch, "percent": 100, "eta_seconds": 0}
        told = {name: value for name, value in result.items() if value is not None}
        status = replace(status, progress=replace(progress, state="Finished", **done, **told))
    return with_stage(status, status.stage, state="Complete", **result)


def _leftovers(world: World, status: Status) -> tuple[Deletion, ...]:
    """What goes when a job is over, by cleanPodPolicy; what has ended usually stays, for its logs."""
    present = (*world.gang, *world.stale, *world.kept)
    match world.job.spec.run_policy.clean_pod_policy:
        case "All":
            return actions.remove(world, status, present)
        case "Running":
            return actions.remove(world, status, [pod for pod in present if pod.termination is None])
    return ()


def _seconds_to_live(world: World, since_completion: float) -> float | None:
    limit = world.job.spec.run_policy.ttl_seconds_after_finished
    return None if limit is None else limit - since_completion
