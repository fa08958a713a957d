"""Detect a broken gang: a failed or lost rank, invalid pods, a startup that takes too long, a hang, a slow node."""

from msgspec.structs import replace

from resnetboost_api import failures, launcher
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure as observed_failure
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import exclusion, pending
from resnetboost_operator.planning.faults import preflight, stragglers

# A victim's failure is often seen before its culprit's: how long to wait for the culprit's. On Kubernetes that may be a
# lost node, which is reported only after 50 s. On one machine (no nodes) everything is reported within moments.
SETTLE_SECONDS = 60.0
LOCAL_SETTLE_SECONDS = 5.0
# A device plugin whose annotations contradict each other may be in the middle of correcting them on several pods.
REFUSAL_SETTLE_SECONDS = 30.0
# While every launcher is connected, no node is lost: by then the leader would have missed it. A launcher whose rank has
# ended waits a little longer for a command.
CONNECTED_SETTLE_SECONDS = launcher.SILENCE_SECONDS + 1


def failure(state: ObservedState) -> Failure | None:
    """What broke the current gang, None while it is whole. A pod counts as missing only after all pods were seen."""
    complete = state.status.attempt_start_time is not None
    missing = state.missing if complete else ()
    culprit = observed_failure.first_culprit(state.gang, missing, state.lost_nodes, state.tombstones)
    if culprit is not None and observed_failure.is_victim(culprit):
        # A node that is not ready at this moment explains a victim well enough.
        culprit = observed_failure.first_culprit(state.gang, (), state.unready_nodes, state.tombstones)
    if culprit is not None and culprit.failure_class is failures.PREFLIGHT_FAILED:
        return preflight.blamed(state, culprit)
    if culprit is not None:
        return _with_remedy(state, culprit)
    image = _image_failure(state, hopeless_only=True)
    broken = _invalid(state) or image or _unschedulable(state) or _startup_failure(state) or _hang(state)
    return broken or stragglers.replacement(state)


def _with_remedy(state: ObservedState, found: Failure) -> Failure:
    """For OutOfMemory: add to the message whose limit it was and what would help."""
    if found.failure_class is not failures.OUT_OF_MEMORY:
        return found
    spec = state.job.spec
    limit = spec.template.resources.limits.get("memory")
    lower = "lower localBatchSize (accumulationSteps keeps the batch of a step)"
    if found.exit_code is not None and found.exit_code <= 128 and spec.device.type != "CPU":  # the device's memory
        remedy = lower
    elif limit is None:
        unset = "template.resources.limits.memory is not set: the limit is its node's, or its namespace's default"
        remedy = f"{unset}; set it, or {lower}"
    else:
        remedy = f"template.resources.limits.memory is {limit}; raise it, or {lower}"
    words = found.message.rstrip()
    killed = found.exit_code is None or found.exit_code > 128  # its words are the end of its log
    joint = "" if not words else "\n" if killed else "; "
    return replace(found, message=f"{words}{joint}{'out of memory: ' if killed else ''}{remedy}")


def settling_seconds(state: ObservedState, found: Failure) -> float:
    """How long to wait for a better explanation than a victim's, while a rank that could give it still runs.

    A kubelet that restarts reports containers as not ready until it has probed them once: that is no hang yet.
    Counted by this operator's clock from `status.failure_time`: kubelet's is another machine's.
    """
    if found.failure_class is failures.RANK_TABLE_REFUSED:
        return REFUSAL_SETTLE_SECONDS - _seconds_since_failure(state)
    if found.failure_class is failures.HANG and state.is_unreachable:
        return SETTLE_SECONDS - _seconds_since_failure(state)
    if not observed_failure.is_victim(found) or not any(pod.termination is None for pod in state.gang):
        return 0.0
    limit = SETTLE_SECONDS if state.observation.nodes else LOCAL_SETTLE_SECONDS
    if _all_connected(state):
        limit = min(limit, CONNECTED_SETTLE_SECONDS)
    return limit - _seconds_since_failure(state)


def _all_connected(state: ObservedState) -> bool:
    report = state.observation.gang_report
    return report is not None and report.connected >= state.count


def settled(state: ObservedState, found: Failure) -> Failure:
    """The failure to act on once the wait for a better explanation is over."""
    return observed_failure.deleted(state.gang) or found if observed_failure.is_victim(found) else found


def _seconds_since_failure(state: ObservedState) -> float:
    seen = state.status.failure_time
    return 0.0 if seen is None else state.now - pods.seconds(seen)


def _invalid(state: ObservedState) -> Failure | None:
    """A failure if the API server will never accept the job's pods.

    The pods of a job that ever had a whole gang were valid: something else makes them invalid now (an injector, a
    LimitRange), and the job waits for its correction as for a quota.
    """
    obstacle = state.observation.obstacle
    was_whole = any(record.start_time for record in state.status.attempts)
    if obstacle is None or not obstacle.permanent or was_whole:
        return None
    if any(stage.state == "Complete" for stage in state.status.stages):
        return None
    message = f"{obstacle.message}; correct spec.template, and apply the job again after deleting it"
    return Failure(failures.INVALID_POD, message=message)


def _unschedulable(state: ObservedState) -> Failure | None:
    """A gang that avoids nodes and finds no others: a failure, because the affinity of pods cannot change."""
    if exclusion.seconds_until_lift(state) > 0:
        return None
    return Failure(failures.NOT_SCHEDULED, message=exclusion.why_lifted(state))


def _startup_failure(state: ObservedState) -> Failure | None:
    if state.seconds_until_startup_deadline() > 0:
        return None
    limit = state.job.spec.run_policy.startup_deadline_seconds
    without_image = _image_failure(state, hopeless_only=False)
    if without_image is not None:
        return without_image
    _, reason = pending.why(state)
    message = f"no rank finished a step within startupDeadlineSeconds: {limit} ({reason})"
    placed = len(state.gang) == state.count and all(pod.node for pod in state.gang)
    return Failure(failures.STARTUP_DEADLINE if placed else failures.NOT_SCHEDULED, message=message)


def _image_failure(state: ObservedState, hopeless_only: bool) -> Failure | None:
    found = pending.image_failure(state.gang, hopeless_only)
    if found is None:
        return None
    pod, words = found
    message = f"{words}; correct template.image or give the node access to it"
    return Failure(failures.IMAGE_ERROR, rank=pod.index, node=pod.node, message=message)


def _hang(state: ObservedState) -> Failure | None:
    if _is_silent_to_kubelet(state):
        limit = state.job.spec.failure_policy.hang_timeout_seconds
        return Failure(failures.HANG, message=f"rank 0 reported no step to its kubelet for hangTimeoutSeconds: {limit}")
    if state.progress is None or state.seconds_until_hang() > 0:
        return None
    limit = state.job.spec.failure_policy.hang_timeout_seconds
    message = f"no progress after step {state.progress.step} for hangTimeoutSeconds: {limit}"
    return Failure(failures.HANG, message=message, step=state.progress.step)


def _is_silent_to_kubelet(state: ObservedState) -> bool:
    """Whether an unreachable rank 0 was ready before, so that it trained, and is not ready any more."""
    running, rank_0 = statuses.condition(state.status, "Running"), state.rank_0
    if not state.is_unreachable or running is None or rank_0 is None:
        return False
    return running.reason == pending.UNHEARD_TRAINING[0] and not rank_0.ready and not rank_0.deleting
