"""Suspending a job: every rank saves and leaves, then the job rests with what is left of its training on record."""

from msgspec.structs import replace

from resnetboost_operator import failures, readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure as observed_failure
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import World
from resnetboost_operator.planning import actions, ending
from resnetboost_operator.planning.actions import Event, Plan
from resnetboost_operator.status import Ranks, Status


def suspend(world: World) -> Plan:
    """Ask every rank to checkpoint and leave; suspended once nobody is left, with the checkpoint on record."""
    status, present = world.status, (*world.gang, *world.stale)
    deletions = actions.remove(world, status, present)
    if statuses.is_true(status, "Suspended"):
        return Plan(status, delete=deletions, wake_seconds=ending.node_wake_seconds(world))
    failure = observed_failure.first_culprit(world.gang, (), departed=world.departed, stopping=True)
    if failure is not None and failure.verdict.policy != "disruption" and not observed_failure.is_victim(failure):
        status = ending.leave(world, failure)  # it failed by itself, or while it saved: that must not be lost
    elif (world.gang or world.departed) and status.attempt_start_time is None:
        status = replace(status, attempt_start_time=world.time)  # never seen whole, but it may have trained
    if present:
        message = f"waiting for {readable.listed([pod.name for pod in present])} to stop; {_saved(world, status)}"
        events = _warning(world, status)
        status = ending.not_running(world, replace(status, phase="Suspending"), "Suspending", message)
        return Plan(status, delete=deletions, events=events, wake_seconds=ending.node_wake_seconds(world))
    if status.attempt_start_time is not None:
        status = ending.leave(world, Failure(failures.SUSPENDED))
    return _rest(world, status)


def _rest(world: World, status: Status) -> Plan:
    message = f"stopped on request; {_saved(world, status)}"
    status = replace(
        status,
        phase="Suspended",
        start_time=None,
        restart_time=None,
        attempt_creation_time=None,
        ranks=Ranks(desired=world.count),
    )
    status = ending.not_running(world, status, "Suspended", message)
    status = statuses.with_condition(status, "Suspended", True, "Suspended", message, world.time)
    return Plan(status, events=(Event("Normal", "Suspended", message),))


def _warning(world: World, status: Status) -> tuple[Event, ...]:
    """Once, as soon as the job is to be suspended: what will be lost."""
    if world.keeps_checkpoints or not _trained(status) or status.phase == "Suspending":
        return ()
    return (Event("Warning", "ProgressLost", _saved(world, status)),)


def _saved(world: World, status: Status) -> str:
    """What the job will go on from."""
    if not world.keeps_checkpoints:
        trained = _trained(status)
        if not trained:
            return "nothing was trained yet"
        lost = f"it loses {readable.plural(trained, 'step')} of training with its pods"
        return f"{lost}, because there is no checkpoint.claimName; resumed, it begins again at step 0"
    known = status.progress if observed_failure.current(status.progress, status) else None
    own = known.checkpoint_step if known is not None else None
    step = observed_failure.highest([own, observed_failure.earlier_checkpoint_step(status)])
    return "there is no checkpoint yet" if step is None else f"the newest checkpoint is of step {step}"


def _trained(status: Status) -> int:
    """Steps of the gang that runs, or that the job was suspended with."""
    if status.progress is not None and observed_failure.current(status.progress, status):
        return status.progress.step
    last = status.attempts[-1] if status.attempts else None
    return (last.last_step or 0) if last is not None and last.reason == failures.SUSPENDED.name else 0
