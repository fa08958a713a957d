"""Restarts in place: whether ranks may start again in the pods they have, the command, and the way back to new pods.

The status is written first: it has the next attempt's number and keeps that of the pods. As long as the leader's
launcher reports an earlier attempt, each plan repeats the command. It costs the API server nothing, and whoever plans
next, after a crash at any point, sends the same one.
"""

from typing import Any

from msgspec.structs import replace

from resnetboost_api import failures, names
from resnetboost_api.launcher import StartAttempt
from resnetboost_api.status import Attempt, Ranks, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, deletions, exclusion, wakeup
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.conditions import not_running

# How long after the back-off every rank must run: launchers need moments.
IN_PLACE_SECONDS = 10.0
# Ports of coordinators, from PORT_COORDINATOR on. The one of the attempt before may be in use for a while.
COORDINATOR_PORTS = 64
# How a rank ends that another start in the same place may heal. The others are about nodes, devices, images, startups.
HEALED = (
    failures.INTERNAL_ERROR,
    failures.CONFIG_ERROR,
    failures.DATA_ERROR,
    failures.NUMERICS_ERROR,
    failures.DIVERGED,
    failures.OUT_OF_MEMORY,
    failures.COMMUNICATION_ERROR,
    failures.STORAGE_ERROR,
    failures.INTERRUPTED,
    failures.KILLED,
    failures.HANG,
)


def obstacle(state: ObservedState, status: Status, failure: Failure, record: Attempt) -> str:
    """Why the gang must restart with new pods after the failure, '' if its ranks may start again in place.

    `status`: with the nodes that the next attempt avoids.
    """
    if not state.job.has_launchers:
        return "failurePolicy.restartIn is NewPod"
    if failure.failure_class not in HEALED:
        return f"{failure.failure_class.name} may need another placement"
    return _excluded(state, status) or _unfit_gang(state) or _unfit_launchers(state) or _useless(state, record)


def with_next_attempt(status: Status, start: str) -> Status:
    """The status with the next attempt's number, in the same pods; its ranks start at that time.

    Their rank table stays too. The attempt counts as started once every rank runs.
    """
    stage = statuses.stage_status(status, status.stage)
    status = statuses.with_stage(status, status.stage, state="Running", attempts=stage.attempts + 1)
    return replace(
        status,
        pods_attempt=statuses.pods_attempt(status),
        attempt=status.attempt + 1,
        attempt_creation_time=start,
        attempt_start_time=None,
        failure_time=None,
    )


def command(state: ObservedState, status: Status) -> StartAttempt | None:
    """The command for the leader's launcher, while it has not heard of the current attempt. `status`: as written."""
    report = state.observation.gang_report
    if not statuses.is_in_place(status) or report is None or report.attempt >= status.attempt:
        return None
    return StartAttempt(
        attempt=status.attempt,
        config=_config(state, status),
        coordinator_port=coordinator_port(status),
        delay_seconds=max(0.0, pods.seconds(status.restart_time) - state.now),
    )


def _config(state: ObservedState, status: Status) -> dict[str, Any]:
    """The attempt's configuration, without a preflight if these very pods have been measured in this stage."""
    config = trainer_config(state.job, state.stage, status.attempt, status.roll_backs)
    found = status.preflight
    measured = found is not None and found.stage == status.stage and found.attempt >= statuses.pods_attempt(status)
    return {name: value for name, value in config.items() if name != "preflight" or not measured}


def recorded(written: Status, decided: Plan) -> StartAttempt | None:
    """The plan's command, None if the status as the API server has it does not say for whose pods it is.

    The CRD may be older than the operator: it drops the field, and the next plan takes the pods for an earlier gang.
    """
    return decided.command if written.pods_attempt == decided.status.pods_attempt else None


def coordinator_port(status: Status) -> int:
    """Where the ranks of the current attempt meet: not where those of the attempt before did."""
    return names.PORT_COORDINATOR + (status.attempt - statuses.pods_attempt(status)) % COORDINATOR_PORTS


def leader(state: ObservedState, status: Status) -> PodView | None:
    """The pod whose launcher to keep a connection to, None without one. `status`: as written."""
    kept = (status.stage, statuses.pods_attempt(status)) == (state.status.stage, state.pods_attempt)
    rank_0 = state.rank_0
    if not kept or rank_0 is None or not state.job.has_launchers:
        return None
    runs = rank_0.phase == "Running" and not rank_0.container_ended and rank_0.address
    return None if not runs or statuses.is_terminal(status) else rank_0


def abandoned(state: ObservedState) -> Plan | None:
    """The plan that goes on with new pods, if the ranks cannot all start in place any more.

    Nothing is recorded or counted: what broke is the attempt before, or nobody's fault, and the end of a container says
    nothing about an attempt that its rank may never have begun. The number grows all the same: some ranks may have
    begun the attempt, and on a lost node may still write its checkpoints.
    """
    if not statuses.is_awaited_in_place(state.status) or not (reason := _lost(state)):
        return None
    status = attempts.with_next_attempt(state.status, state.time)
    creation = state.status.attempt_creation_time  # of what counts as one attempt
    status = replace(status, attempt_creation_time=creation, ranks=Ranks(desired=state.count))
    message = (
        f"attempt {state.status.attempt} cannot start in place, so attempt {status.attempt} gets new pods: {reason}"
    )
    status = not_running(status, "Restarting", message, state.time)
    delete = deletions.delete(state, status, (*state.gang, *state.stale))
    return Plan(status, delete=delete, events=(Event("Warning", "NewPods", message),), wake_seconds=0.0)


def awaited(state: ObservedState) -> Plan | None:
    """The plan while ranks that were told to start in place do not all run yet, None once they do.

    Rank 0 is polled from the end of the back-off on: an operator that cannot greet the launchers hears of it alone.
    """
    if not statuses.is_awaited_in_place(state.status) or _all_run(state):
        return None
    left = _seconds_left(state)
    wake = sooner(left if left > 0 else None, wakeup.wake_seconds(state))
    delay = max(0.0, pods.seconds(state.status.restart_time) - state.now)
    return Plan(
        state.status,
        delete=deletions.delete(state, state.status, state.stale),
        wake_seconds=wake,
        poll=state.polled,
        poll_seconds=delay + wakeup.POLL_STARTING_SECONDS,
    )


def _excluded(state: ObservedState, status: Status) -> str:
    avoided = exclusion.nodes(status)
    found = next((pod.node for pod in state.gang if pod.node in avoided), None)
    return f"node {found} is excluded" if found is not None else ""


def _unfit_gang(state: ObservedState) -> str:
    """What is wrong with the pods of the gang, or with their nodes."""
    if gone := state.count - len(state.gang):
        return f"{readable.plural(gone, 'pod')} of the gang {'is' if gone == 1 else 'are'} gone"
    for pod in state.gang:
        if pod.deleting or pod.disruption:
            return f"{pod.name} is being deleted"
        if pod.container_ended or pod.phase != "Running":
            return f"the container of {pod.name} does not run"
        if pod.node in state.unready_nodes:
            return f"node {pod.node} is not ready"
    if devices.needs_rank_table(state.job.spec.device, state.stage) and state.status.rank_table is None:
        return "it has no rank table yet"
    return ""


def _unfit_launchers(state: ObservedState) -> str:
    report = state.observation.gang_report
    if report is None:
        return f"the launcher of rank 0 (port {names.PORT_LAUNCHER}) does not answer"
    if report.connected < state.count:
        return f"{report.connected}/{state.count} launchers are connected"
    if report.attempt != state.status.attempt:
        return f"the launchers are at attempt {report.attempt}"
    # Otherwise nothing would show that the next attempt trains: what kubelet knows is of the one before.
    return "rank 0 cannot be polled for its progress" if state.observation.unreachable else ""


def _useless(state: ObservedState, record: Attempt) -> str:
    """Whether the current attempt started in place and came to nothing."""
    first = record.resumed_step or statuses.earlier_checkpoint_step(state.status) or 0
    if not statuses.is_in_place(state.status) or state.is_training or (record.last_step or 0) > first:
        return ""
    return f"attempt {record.attempt} started in place and finished no step"


def _lost(state: ObservedState) -> str:
    """Why the ranks that were told to start in place never will, or have taken too long."""
    if reason := _unfit_gang(state):
        return reason
    report = state.observation.gang_report
    if report is not None and report.connected < state.count:
        return f"{report.connected}/{state.count} launchers are connected"
    if report is not None and report.attempt > state.status.attempt:
        return f"the launchers are at attempt {report.attempt}"
    if _seconds_left(state) > 0 or _all_run(state):
        return ""
    if report is None and state.progress is not None:
        return ""  # rank 0 has begun, so the others were told too; the startup deadline bounds the rest
    if report is None:
        return f"the launcher of rank 0 (port {names.PORT_LAUNCHER}) does not answer"
    running = report.running if report.attempt == state.status.attempt else 0
    return f"{running}/{state.count} ranks run {IN_PLACE_SECONDS:.0f} s after they should"


def _all_run(state: ObservedState) -> bool:
    """By the leader's launcher, or by a step of the attempt, which takes every rank."""
    if state.progress is not None and state.progress.heartbeat > 0:
        return True
    report = state.observation.gang_report
    return report is not None and report.attempt == state.status.attempt and report.running >= state.count


def _seconds_left(state: ObservedState) -> float:
    """Until every rank must run. An operator that has just begun has not heard from them yet."""
    begun = max(pods.seconds(state.status.restart_time), state.observation.since)
    return begun + IN_PLACE_SECONDS - state.now
