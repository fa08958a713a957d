"""The plan: the list of steps from a job and its observed state to actions. Each step's policy has a file of its own.

Pure: the clock is an argument, nothing is requested, and the status is all it remembers. The caller writes the status
first, then deletes, then creates; a crash between any two of these is repaired by the next plan.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from resnetboost_api import failures, names
from resnetboost_api.status import StageStatus, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.job import Job
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import Observation, ObservedState, observe
from resnetboost_operator.planning import (
    admission,
    cleanup,
    conditions,
    deadlines,
    exclusion,
    obsolete_groups,
    pending,
    placement,
    queue,
    rank_assignment,
    renamed,
    reports,
    running,
    stages,
    start,
    suspend,
    timekeeping,
    wakeup,
)
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.elastic import probes, resize, size
from resnetboost_operator.planning.faults import failure_detection, in_place, preflight, restart, stragglers
from resnetboost_operator.planning.rank_assignment import RankAssignment


def plan(job: Job, status: Status, observation: Observation, now: float) -> Plan:
    """The next actions for a job. Planning again with their results changes nothing more."""
    begun = size.begun(job, _begun(job, status, pods.timestamp(now)))
    state = observe(size.sized(job, begun, observation), begun, observation, now)
    state = timekeeping.begun(reports.with_progress(admission.with_admission(state)))
    decided = queue.with_workload(status, state, probes.with_probes(state, _decide(state)))
    kept = timekeeping.kept(state, stragglers.with_straggling(state, decided.status))
    decided = size.with_wake(state, replace(decided, status=replace(kept, phase=conditions.phase(kept))))
    decided = replace(decided, events=(*decided.events, *_changes(status, decided.status, now)))
    return replace(
        _with_warning(status, decided),
        obsolete_groups=obsolete_groups.obsolete(state, decided.status),
        launcher=in_place.leader(state, decided.status),
        command=in_place.command(state, decided.status),
    )


def _changes(before: Status, after: Status, now: float) -> Iterator[Event]:
    yield from preflight.events(before, after)
    yield from exclusion.events(before, after, now)
    yield from stragglers.events(before, after)


def _begun(job: Job, status: Status, now: str) -> Status:
    """The status of a job that was never planned before, or is resumed: its active time begins now."""
    selector = f"{names.LABEL_JOB}={job.name},{names.LABEL_JOB_UID}={job.uid}"
    status = replace(status, observed_generation=job.generation, selector=selector)
    if not status.stage:
        first = tuple(StageStatus(stage.name) for stage in job.spec.stages)
        status = replace(status, stage=first[0].name, stages=first)
    if statuses.is_terminal(status):
        return status
    status = exclusion.without_expired(status, pods.seconds(now))
    if job.spec.run_policy.suspend:
        return status
    status = suspend.resumed(status, now)
    return status if status.start_time is not None else replace(status, start_time=now)


def _decide(state: ObservedState) -> Plan:
    if statuses.is_terminal(state.status):
        return cleanup.clean_up(state)
    if len(state.succeeded) == state.count:
        return stages.complete(state)
    if state.job.spec.run_policy.suspend:
        return suspend.suspend(state)
    if (held := queue.hold(state)) is not None:
        return held
    if (resized := resize.resize(state := size.with_room(state))) is not None:
        return resized
    if (abandoned := in_place.abandoned(state)) is not None:
        return abandoned
    failure, ranks = failure_detection.failure(state), None
    if failure is None and (ranks := rank_assignment.assign(state)) is not None:
        state, failure = rank_assignment.with_assignment(state, ranks), ranks.failure
    settling = failure_detection.settling_seconds(state, failure) if failure is not None else 0.0
    if failure is not None and settling <= 0:
        # Before any deadline: whoever failed first is the reason.
        return restart.restart_or_fail(state, failure_detection.settled(state, failure))
    if state.seconds_until_deadline() <= 0:
        return deadlines.exceed_deadline(state)
    if failure is not None:
        return _settle(state, failure, settling)
    if (anew := renamed.begin_anew(state)) is not None:
        return anew
    state = replace(state, status=replace(state.status, failure_time=None))
    decided = _start_or_watch(state)
    return _with_rank_table(decided, ranks) if ranks is not None else decided


def _settle(state: ObservedState, failure: Failure, seconds: float) -> Plan:
    """Wait for a better explanation of the failure, or for the device plugin to correct its annotations."""
    status = replace(state.status, failure_time=state.status.failure_time or state.time)
    if failure.failure_class is failures.RANK_TABLE_REFUSED:
        status = pending.with_reason(state, status)
    return Plan(status, wake_seconds=sooner(seconds, wakeup.node_wake_seconds(state)))


def _start_or_watch(state: ObservedState) -> Plan:
    if state.status.attempt_start_time is not None:
        return running.watch(state)
    if (awaited := in_place.awaited(state)) is not None:
        return awaited
    if state.missing:
        return queue.await_flavors(state) or placement.hold(state) or start.create_missing(state)
    return running.watch(replace(state, status=replace(state.status, attempt_start_time=state.time)))


def _with_rank_table(decided: Plan, ranks: RankAssignment) -> Plan:
    """The plan with the actions that publish the rank table, after anything else that is created."""
    return replace(decided, objects=(*decided.objects, *ranks.create), annotate=ranks.annotate)


def _with_warning(before: Status, decided: Plan) -> Plan:
    """The plan with an event for a new reason why a gang waits. Its end and its restart have events of their own."""
    current = statuses.condition(decided.status, "Running")
    if (
        current is None
        or decided.status.phase not in ("Pending", "Starting", "Running")
        or current.reason == running.TRAINING
    ):
        return decided
    known = statuses.condition(before, "Running")
    trouble = pending.trouble(current.reason)
    if not trouble or (known is not None and pending.trouble(known.reason) == trouble):
        return decided
    return replace(decided, events=(*decided.events, Event("Warning", current.reason, current.message)))
