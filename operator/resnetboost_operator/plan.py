"""Decides, from what is, what should be: the one straight line from a job and its pods to objects and status.

Pure: no clock but the one passed in, no cluster, no memory beyond the status. Whoever calls it writes the status
first, then deletes, then creates; a crash between any two of these is repaired by the next call.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from resnetboost_operator import api, backoff, evidence, manifests, pods, verdicts
from resnetboost_operator import status as statuses
from resnetboost_operator.evidence import Failure
from resnetboost_operator.pods import PodView
from resnetboost_operator.status import Attempt, Ranks, StageStatus, Status
from resnetboost_operator.world import Observed, World, see

# A victim's failure is often seen before its culprit's; this long it waits for a better explanation.
SETTLE_SECONDS = 5.0
# Survivors of a broken gang hang in a collective and have nothing left to save.
BROKEN_GANG_GRACE_SECONDS = 5

Manifest = dict[str, Any]


class Deletion(msgspec.Struct, frozen=True):
    """A pod to delete: this very one (`uid`), not a later one of the same name."""

    name: str
    uid: str
    grace_seconds: int


class Event(msgspec.Struct, frozen=True):
    """Something a user should read in `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Plan(msgspec.Struct, frozen=True):
    """What should be. `wake_seconds`: when time alone may change the answer; `poll`: the pod to ask for progress."""

    status: Status
    create: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    events: tuple[Event, ...] = ()
    wake_seconds: float | None = None
    poll: PodView | None = None


def plan(job: api.Job, status: Status, observed: Observed, now: float) -> Plan:
    """The next step for a job. Calling it again with its own results changes nothing more."""
    return _decide(see(job, status, observed, now))


def _decide(world: World) -> Plan:
    status, spec = world.status, world.job.spec
    if statuses.is_terminal(status):
        return _clean_up(world)
    if len(world.succeeded) == world.count:
        return _finish_stage(world)
    if spec.run_policy.suspend:
        return _suspend(world)
    if world.seconds_until_deadline() <= 0:
        return _exceed_deadline(world)
    if status.attempt_start_time is None:
        return _start_gang(world)
    return _watch_gang(world)


def _start_gang(world: World) -> Plan:
    """Create what is missing, once the attempt before is gone and its back-off is over."""
    status = world.status
    if not world.missing:
        started = replace(status, phase="Starting", attempt_start_time=world.time)
        return _watch_gang(replace(world, status=_stage_attempted(started)))
    wait = pods.seconds(status.restart_time) - world.now
    if world.stale or wait > 0:
        return Plan(status, delete=_delete(world.stale), wake_seconds=_sooner(wait if wait > 0 else None, _wake(world)))
    status = _not_running(world, replace(status, phase="Starting"), "Starting", "the gang's pods are being created")
    message = f"attempt {status.attempt} of stage {status.stage}: creating {len(world.missing)} of {world.count} pods"
    event = Event("Normal", "GangStarting", message)
    return Plan(status, create=_missing_objects(world), events=(event,), wake_seconds=_wake(world))


def _missing_objects(world: World) -> tuple[Manifest, ...]:
    present = {pod.name for pod in world.gang}
    wanted = manifests.gang(world.job, world.stage, world.status.attempt)
    return tuple(found for found in wanted if found["metadata"]["name"] not in present)


def _stage_attempted(status: Status) -> Status:
    return _with_stage(status, status.stage, state="Running", attempts=_stage(status, status.stage).attempts + 1)


def _watch_gang(world: World) -> Plan:
    """Every pod of the gang has been seen: from now on whatever is missing is lost."""
    failure = _failure(world)
    if failure is not None:
        settling = _settling_seconds(world, failure)
        if settling <= 0:
            return _end_attempt(world, failure)
        return Plan(world.status, wake_seconds=_sooner(settling, _wake(world)))
    status = _running(world)
    rank_0 = next((pod for pod in world.gang if pod.index == 0 and pod.phase == "Running" and pod.address), None)
    return Plan(status, delete=_delete(world.stale), wake_seconds=_wake(world), poll=rank_0)


def _running(world: World) -> Status:
    """Starting until the first step is done, Running from then on: a person should see when it really trains."""
    status, count = world.status, world.count
    if world.progress is not None and world.progress.heartbeat > 0:
        status = replace(status, phase="Running")
        return statuses.with_condition(status, "Running", True, "Training", f"all {count} ranks train", world.time)
    waiting = f"{status.ranks.running}/{count} ranks run; none has finished a step yet"
    return _not_running(world, replace(status, phase="Starting"), "Starting", waiting)


def _not_running(world: World, status: Status, reason: str, message: str) -> Status:
    return statuses.with_condition(status, "Running", False, reason, message, world.time)


def _failure(world: World) -> Failure | None:
    return evidence.first_culprit(world.gang, world.missing) or _startup_failure(world) or _hang(world)


def _startup_failure(world: World) -> Failure | None:
    if world.seconds_until_startup_deadline() > 0:
        return None
    limit = world.job.spec.run_policy.startup_deadline_seconds
    message = f"no rank finished a step within startupDeadlineSeconds: {limit}"
    return Failure(verdicts.STARTUP_DEADLINE, message=message)


def _hang(world: World) -> Failure | None:
    if world.progress is None or world.seconds_until_hang() > 0:
        return None
    limit = world.job.spec.failure_policy.hang_timeout_seconds
    message = f"no progress after step {world.progress.step} for hangTimeoutSeconds: {limit}"
    return Failure(verdicts.HANG, message=message, step=world.progress.step)


def _settling_seconds(world: World, failure: Failure) -> float:
    """How long to wait for a better explanation than a victim's, while somebody who could give it still runs.

    Kubelet's clock is another machine's: it never lengthens the wait.
    """
    if not evidence.is_victim(failure) or not any(pod.termination is None for pod in world.gang):
        return 0.0
    ends = [pod.termination.finished_at for pod in world.gang if pod.termination is not None]
    first = min(ends, default=world.now)
    return min(first + SETTLE_SECONDS - world.now, SETTLE_SECONDS)


def _end_attempt(world: World, failure: Failure) -> Plan:
    """Write the evidence, then restart the whole gang or give up."""
    record = evidence.attempt(failure, world.status, world.time)
    reason, refusal = _refusal(world, failure, record)
    if reason:
        return _fail(world, reason, refusal, record)
    status = _next_attempt(world, record, failure.verdict.policy == "restart")
    delay = backoff.delay_seconds(world.job.spec.failure_policy, status.stage, status.attempts)
    status = replace(status, phase="Restarting", restart_time=pods.timestamp(world.now + delay))
    message = f"{_describe(record)}; the gang restarts in {delay} s"
    status = _not_running(world, status, "Restarting", message)
    event = Event("Warning", "GangRestart", message)
    graceful = failure.verdict is verdicts.INTERRUPTED
    wake = _sooner(float(delay), _wake(world))
    return Plan(status, delete=_delete(world.gang, graceful), events=(event,), wake_seconds=wake)


def _refusal(world: World, failure: Failure, record: Attempt) -> tuple[str, str]:
    """Why the gang is not restarted, as (reason, sentence); ('', '') if it is."""
    policy, text = world.job.spec.failure_policy, _describe(record)
    if failure.verdict.policy == "fail":
        return failure.verdict.name, f"{text}; a restart would end the same way"
    if _is_repetition(failure, record, world.status.attempts):
        return "RepeatedFailure", f"{text}; the attempt before ended the same way at the same step"
    exhausted = world.status.restarts_count_towards_max >= policy.max_restarts
    if failure.verdict.policy == "restart" and exhausted:
        return "MaxRestartsExceeded", f"{text}; maxRestarts: {policy.max_restarts} is used up"
    return "", ""


def _is_repetition(failure: Failure, record: Attempt, attempts: Sequence[Attempt]) -> bool:
    """The same error at the same step twice: a bug or a bad sample, which no restart heals."""
    if failure.verdict not in (verdicts.INTERNAL_ERROR, verdicts.OUT_OF_MEMORY, verdicts.STORAGE_ERROR):
        return False
    before = attempts[-1] if attempts else None
    same = before is not None and (before.reason, before.stage) == (record.reason, record.stage)
    return same and before is not None and before.last_step == record.last_step


def _describe(record: Attempt) -> str:
    """One line a person understands: attempt 0 failed: rank 1 on node-a ended with Killed (exit code 137) ..."""
    who = f"rank {record.rank}" if record.rank is not None else "the gang"
    where = f" on {record.node}" if record.node else ""
    code = f" (exit code {record.exit_code})" if record.exit_code is not None else ""
    step = f" after step {record.last_step}" if record.last_step is not None else ""
    killed = record.exit_code is not None and record.exit_code > 128  # its last log line is no explanation
    why = [] if killed else record.message.strip().splitlines()
    return f"attempt {record.attempt}: {who}{where} ended with {record.reason}{code}{step}" + (
        f": {why[-1][:300]}" if why else ""
    )


def _next_attempt(world: World, record: Attempt, counts: bool) -> Status:
    status = statuses.with_attempt(world.status, record)
    return replace(
        status,
        attempt=status.attempt + 1,
        attempt_start_time=None,
        restarts=status.restarts + 1,
        restarts_count_towards_max=status.restarts_count_towards_max + counts,
        ranks=Ranks(desired=world.count),
    )


def _exceed_deadline(world: World) -> Plan:
    """Out of time, and nobody's failure: the ranks may still save what they have."""
    limit = world.job.spec.run_policy.active_deadline_seconds
    message = f"the job was active for more than activeDeadlineSeconds: {limit}"
    record = evidence.attempt(Failure(verdicts.DEADLINE, message=message), world.status, world.time)
    return _fail(world, verdicts.DEADLINE.name, message, record if world.gang else None, graceful=True)


def _fail(world: World, reason: str, message: str, record: Attempt | None, graceful: bool = False) -> Plan:
    """The job is over. What still runs goes; what has ended stays, for its logs."""
    status = statuses.with_attempt(world.status, record) if record is not None else world.status
    status = _with_stage(status, status.stage, state="Failed")
    ranks = replace(status.ranks, running=0, ready=0)
    status = replace(status, phase="Failed", completion_time=world.time, ranks=ranks)
    status = _not_running(world, status, "Failed", message)
    status = statuses.with_condition(status, "Failed", True, reason, message, world.time)
    return Plan(status, delete=_delete(_unfinished(world), graceful), events=(Event("Warning", reason, message),))


def _finish_stage(world: World) -> Plan:
    """All ranks are done: keep the result, go on with the next stage or complete the job."""
    status = _with_result(world)
    names_in_order = [stage.name for stage in world.job.spec.stages]
    position = names_in_order.index(status.stage)
    if position + 1 == len(names_in_order):
        return _complete(world, status)
    status = replace(
        status,
        stage=names_in_order[position + 1],
        attempt=status.attempt + 1,
        attempt_start_time=None,
        restart_time=None,
        ranks=Ranks(desired=world.count),
    )
    message = f"stage {world.status.stage} is complete; stage {status.stage} begins"
    status = _not_running(world, status, "StageComplete", message)
    return Plan(status, events=(Event("Normal", "StageComplete", message),), wake_seconds=0.0)


def _complete(world: World, status: Status) -> Plan:
    count = len(status.stages)
    message = f"all {count} stages are complete" if count > 1 else f"stage {status.stage} is complete"
    status = replace(status, phase="Complete", completion_time=world.time)
    status = _not_running(world, status, "Complete", message)
    status = statuses.with_condition(status, "Complete", True, "StagesComplete", message, world.time)
    return Plan(status, delete=_delete(world.stale), events=(Event("Normal", "Complete", message),))


def _with_result(world: World) -> Status:
    """The stage's final evaluation, from rank 0's own last words."""
    ended = next((pod.termination for pod in world.gang if pod.index == 0), None)
    if ended is None:
        return _with_stage(world.status, world.status.stage, state="Complete")
    report = ended.report
    result = {"top1": report.top1, "top5": report.top5, "test_loss": report.test_loss}
    status = world.status
    if world.progress is not None:
        progress = world.progress
        done = {"step": progress.total_steps, "epoch": float(progress.total_epochs), "percent": 100, "eta_seconds": 0}
        status = replace(status, progress=replace(progress, state="Finished", **done, **result))
    return _with_stage(status, status.stage, state="Complete", **result)


def _suspend(world: World) -> Plan:
    """Ask every rank to checkpoint and leave; suspended once nobody is left, with the checkpoint on record."""
    status, present = world.status, (*world.gang, *world.stale)
    if statuses.is_true(status, "Suspended"):
        return Plan(status, delete=_delete(present))
    failure = evidence.first_culprit(world.gang, ())
    if failure is not None and failure.verdict.policy != "disruption" and not evidence.is_victim(failure):
        status = _leave_attempt(world, failure)  # it failed by itself, or while it saved: that must not be lost
    elif world.gang and status.attempt_start_time is None:
        status = replace(status, attempt_start_time=world.time)  # never seen whole, but it may have trained
    if present:
        message = f"{len(present)} pods are still stopping; {_checkpoint(status)}"
        status = _not_running(world, replace(status, phase="Suspending"), "Suspending", message)
        return Plan(status, delete=_delete(present, graceful=True))
    if status.attempt_start_time is not None:
        status = _leave_attempt(world, Failure(verdicts.SUSPENDED))
    message = f"stopped on request; {_checkpoint(status)}"
    ranks = Ranks(desired=world.count)
    status = replace(status, phase="Suspended", start_time=None, restart_time=None, ranks=ranks)
    status = _not_running(world, status, "Suspended", message)
    status = statuses.with_condition(status, "Suspended", True, "Suspended", message, world.time)
    return Plan(status, events=(Event("Normal", "Suspended", message),))


def _leave_attempt(world: World, failure: Failure) -> Status:
    """Record the current attempt; what comes next is another one, though nothing was restarted."""
    status = statuses.with_attempt(world.status, evidence.attempt(failure, world.status, world.time))
    return replace(status, attempt=status.attempt + 1, attempt_start_time=None)


def _checkpoint(status: Status) -> str:
    known = status.progress if evidence.current(status.progress, status) else None
    earlier = [record.checkpoint_step for record in status.attempts if record.stage == status.stage]
    step = evidence.highest([known.checkpoint_step if known is not None else None, *earlier])
    return "there is no checkpoint yet" if step is None else f"the newest checkpoint is of step {step}"


def _clean_up(world: World) -> Plan:
    """Nothing runs for a job that is over."""
    return Plan(world.status, delete=_delete(_unfinished(world)))


def _unfinished(world: World) -> list[PodView]:
    return [pod for pod in (*world.gang, *world.stale) if pod.termination is None]


def _delete(views: Sequence[PodView], graceful: bool = False) -> tuple[Deletion, ...]:
    """Deletions of pods that nobody deletes yet."""
    grace = manifests.TERMINATION_GRACE_SECONDS if graceful else BROKEN_GANG_GRACE_SECONDS
    return tuple(Deletion(pod.name, pod.uid, grace) for pod in views if not pod.deleting)


def _stage(status: Status, name: str) -> StageStatus:
    return next(stage for stage in status.stages if stage.name == name)


def _with_stage(status: Status, name: str, **changes: Any) -> Status:
    changed = replace(_stage(status, name), **changes)
    return replace(status, stages=tuple(changed if stage.name == name else stage for stage in status.stages))


def _wake(world: World) -> float | None:
    """Seconds until one of the deadlines may strike, if there is any."""
    soonest = min(world.seconds_until_deadline(), world.seconds_until_startup_deadline(), world.seconds_until_hang())
    return None if soonest == float("inf") else max(0.0, soonest)


def _sooner(*seconds: float | None) -> float | None:
    return min((found for found in seconds if found is not None), default=None)
