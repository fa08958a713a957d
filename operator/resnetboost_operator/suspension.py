"""Suspending a job: every rank saves and leaves, then the job rests with its checkpoint on record; nothing is lost."""

from msgspec.structs import replace

from resnetboost_operator import decision, ending, evidence, verdicts
from resnetboost_operator import status as statuses
from resnetboost_operator.decision import Event, Plan
from resnetboost_operator.evidence import Failure
from resnetboost_operator.status import Ranks, Status
from resnetboost_operator.world import World


def suspend(world: World) -> Plan:
    """Ask every rank to checkpoint and leave; suspended once nobody is left, with the checkpoint on record."""
    status, present = world.status, (*world.gang, *world.stale)
    deletions = decision.remove(world, status, present)
    if statuses.is_true(status, "Suspended"):
        return Plan(status, delete=deletions, wake_seconds=ending.node_wake_seconds(world))
    failure = evidence.first_culprit(world.gang, (), departed=world.departed, stopping=True)
    if failure is not None and failure.verdict.policy != "disruption" and not evidence.is_victim(failure):
        status = ending.leave(world, failure)  # it failed by itself, or while it saved: that must not be lost
    elif (world.gang or world.departed) and status.attempt_start_time is None:
        status = replace(status, attempt_start_time=world.time)  # never seen whole, but it may have trained
    if present:
        message = f"{len(present)} pods are still stopping; {_checkpoint(status)}"
        status = ending.not_running(world, replace(status, phase="Suspending"), "Suspending", message)
        return Plan(status, delete=deletions, wake_seconds=ending.node_wake_seconds(world))
    if status.attempt_start_time is not None:
        status = ending.leave(world, Failure(verdicts.SUSPENDED))
    return _rest(world, status)


def _rest(world: World, status: Status) -> Plan:
    message = f"stopped on request; {_checkpoint(status)}"
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


def _checkpoint(status: Status) -> str:
    known = status.progress if evidence.current(status.progress, status) else None
    own = known.checkpoint_step if known is not None else None
    step = evidence.highest([own, evidence.earlier_checkpoint_step(status)])
    return "there is no checkpoint yet" if step is None else f"the newest checkpoint is of step {step}"
