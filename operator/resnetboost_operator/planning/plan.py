"""Decides, from what is, what should be: the one straight line from a job and its pods to objects and status.

Pure: no clock but the one passed in, no cluster, no memory beyond the status. Whoever calls it writes the status
first, then deletes, then creates; a crash between any two of these is repaired by the next call.
"""

from typing import Any

from msgspec.structs import replace

from resnetboost_operator import api, failures, readable
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests import gang
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import Observed, World, see
from resnetboost_operator.planning import actions, ending, failure_detection, pending, rank_assignment, suspend
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.rank_assignment import Publication
from resnetboost_operator.status import Status

# How often rank 0 is asked: soon, to see the first step when it happens; then as often as people look.
POLL_STARTING_SECONDS = 3.0
POLL_RUNNING_SECONDS = 15.0

TRAINING = "Training"  # the reason of a condition Running that is as it should be

Manifest = dict[str, Any]


def plan(job: api.Job, status: Status, observed: Observed, now: float) -> Plan:
    """The next step for a job. Calling it again with its own results changes nothing more."""
    return _with_warning(status, _decide(see(job, status, observed, now)))


def _with_warning(before: Status, decided: Plan) -> Plan:
    """The same, and an event for each new reason why a gang waits; what ends or restarts one has its own."""
    waits = statuses.condition(decided.status, "Running")
    if waits is None or decided.status.phase not in ("Starting", "Running") or waits.reason == TRAINING:
        return decided
    known = statuses.condition(before, "Running")
    trouble = pending.trouble(waits.reason)
    if not trouble or (known is not None and pending.trouble(known.reason) == trouble):
        return decided
    return replace(decided, events=(*decided.events, Event("Warning", waits.reason, waits.message)))


def _decide(world: World) -> Plan:
    status, spec = world.status, world.job.spec
    if statuses.is_terminal(status):
        return ending.over(world)
    if len(world.succeeded) == world.count:
        return ending.stage(world)
    if spec.run_policy.suspend:
        return suspend.suspend(world)
    failure, publication = failure_detection.failure(world), None
    if failure is None and (publication := rank_assignment.examine(world)) is not None:
        world, failure = rank_assignment.noted(world, publication), publication.failure
    settling = failure_detection.settling_seconds(world, failure) if failure is not None else 0.0
    if failure is not None and settling <= 0:
        # Before any deadline: whoever failed first is the reason.
        return ending.attempt(world, failure_detection.settled(world, failure))
    if world.seconds_until_deadline() <= 0:
        return ending.exceed_deadline(world)
    if failure is not None:
        return _settle(world, failure, settling)
    world = replace(world, status=replace(world.status, failure_time=None))
    decided = _start_gang(world) if world.status.attempt_start_time is None else _watch_gang(world)
    return _with_rank_table(decided, publication) if publication is not None else decided


def _settle(world: World, failure: Failure, seconds: float) -> Plan:
    """Wait for a better explanation, or for a device plugin that thinks again."""
    status = replace(world.status, failure_time=world.status.failure_time or world.time)
    if failure.verdict is failures.RANK_TABLE_REFUSED:
        status = _starting(world, status)
    return Plan(status, wake_seconds=sooner(seconds, ending.node_wake_seconds(world)))


def _with_rank_table(decided: Plan, found: Publication) -> Plan:
    """The same, and what publishing takes; it begins only when nothing else is to be created."""
    return replace(decided, create=(*decided.create, *found.create), annotate=found.annotate)


def _start_gang(world: World) -> Plan:
    """Create what is missing once the back-off is over, each pod as soon as its index of the gang before is gone.

    So a restart needs no more devices and no more quota than the gang it replaces, and waits for no straggler.
    """
    status = world.status
    if not world.missing:
        return _watch_gang(replace(world, status=replace(status, attempt_start_time=world.time)))
    going = actions.remove(world, status, world.stale)
    back_off = pods.seconds(status.restart_time) - world.now
    if back_off > 0:
        return Plan(status, delete=going, wake_seconds=sooner(back_off, ending.wake_seconds(world)))
    events: tuple[Event, ...] = ()
    if status.attempt_creation_time is None:
        status, events = _begin_attempt(world)
    status = _starting(world, status)
    wake = ending.wake_seconds(replace(world, status=status))
    create, obsolete = _missing_objects(world), gang.obsolete_selector(world.job, status.attempt)
    return Plan(status, create, going, events, obsolete=obsolete if create else "", wake_seconds=wake)


def _begin_attempt(world: World) -> tuple[Status, tuple[Event, ...]]:
    status = replace(world.status, phase="Starting", attempt_creation_time=world.time)
    attempts = ending.stage_status(status, status.stage).attempts + 1
    status = ending.with_stage(status, status.stage, state="Running", attempts=attempts)
    message = f"attempt {status.attempt} of stage {status.stage}: a gang of {readable.plural(world.count, 'pod')}"
    return status, (Event("Normal", "GangStarting", message),)


def _missing_objects(world: World) -> tuple[Manifest, ...]:
    """Pods whose place is free; what they refer to goes first, and is there as soon as one of them is."""
    taken = {pod.index for pod in world.stale}
    indexes = [index for index in world.missing if index not in taken]
    job, stage, attempt = world.job, world.stage, world.status.attempt
    shared = () if world.gang or not indexes else gang.shared(job, stage, attempt)
    return shared + tuple(gang.pod(job, stage, attempt, index) for index in indexes)


def _watch_gang(world: World) -> Plan:
    """Every pod of the gang has been seen: from now on whatever is missing is lost."""
    status, seconds = _starting(world, world.status), POLL_STARTING_SECONDS
    if world.is_training or world.status.phase == "Running":
        status, seconds = _running(world), _poll_running_seconds(world)
    rank_0 = next((pod for pod in world.gang if pod.index == 0 and pod.phase == "Running" and pod.address), None)
    going, wake = actions.remove(world, status, world.stale), ending.wake_seconds(world)
    return Plan(status, delete=going, wake_seconds=wake, poll=rank_0, poll_seconds=seconds)


def _poll_running_seconds(world: World) -> float:
    """Several polls must fit into the hang timeout, or a gang would count as hung between two of them."""
    return min(POLL_RUNNING_SECONDS, world.job.spec.failure_policy.hang_timeout_seconds / 3)


def _running(world: World) -> Status:
    """Starting until the first step is done, Running from then on: a person should see when it really trains."""
    status = replace(world.status, phase="Running")
    if world.is_unheard:
        known = world.rank_0 is not None and world.rank_0.ready
        reason, message = pending.UNHEARD_TRAINING if known else pending.UNHEARD
        return statuses.with_condition(status, "Running", True, reason, message, world.time)
    return statuses.with_condition(status, "Running", True, TRAINING, f"all {world.count} ranks train", world.time)


def _starting(world: World, status: Status) -> Status:
    reason, message = pending.why(world.gang, world.count, world.observed.refusal)
    if world.is_unheard:
        reason, message = pending.UNHEARD
    reason, message = rank_assignment.why(world) or (reason, message)
    if going := [pod.name for pod in world.stale if pod.deleting and pod.index in world.missing]:
        message += f"; waiting for {readable.listed(going)} of an earlier attempt to end"
    return ending.not_running(world, replace(status, phase="Starting"), reason, message)
