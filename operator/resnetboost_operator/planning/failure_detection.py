"""Notices a broken gang: a rank that failed or is gone, a start that takes too long, a hang; it acts on nothing."""

from msgspec.structs import replace

from resnetboost_operator import failures
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import failure as observed_failure
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import World
from resnetboost_operator.planning import pending, rank_assignment

# A victim's failure is often seen before its culprit's; so long it waits for a better explanation. On Kubernetes that
# may be a lost node, which is told only after 50 s. On one machine (no nodes) everything is told within moments.
SETTLE_SECONDS = 60.0
LOCAL_SETTLE_SECONDS = 5.0
# A device plugin that contradicts itself may be in the middle of correcting what it wrote on several pods.
REFUSAL_SETTLE_SECONDS = 30.0


def failure(world: World) -> Failure | None:
    """What broke the current gang, None while it is whole. Before all its pods were seen none of them is missing."""
    complete = world.status.attempt_start_time is not None
    missing = world.missing if complete else ()
    culprit = observed_failure.first_culprit(world.gang, missing, world.lost_nodes, world.departed)
    if culprit is not None and observed_failure.is_victim(
        culprit
    ):  # a node that just fell silent explains it well enough
        culprit = observed_failure.first_culprit(world.gang, (), world.unready_nodes, world.departed)
    if culprit is not None:
        return _with_remedy(world, culprit)
    return _invalid(world) or _image_failure(world, hopeless_only=True) or _startup_failure(world) or _hang(world)


def _with_remedy(world: World, found: Failure) -> Failure:
    """Out of memory: whose limit it was, and what would help, as the last line of its words."""
    if found.verdict is not failures.OUT_OF_MEMORY:
        return found
    spec = world.job.spec
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


def settling_seconds(world: World, found: Failure) -> float:
    """How long to wait for a better explanation than a victim's, while somebody who could give it still runs.

    A kubelet that starts again calls containers not ready until it has asked them once: that is no hang yet.
    Counted by this operator's clock from `status.failure_time`: kubelet's is another machine's.
    """
    if found.verdict is failures.RANK_TABLE_REFUSED:
        return REFUSAL_SETTLE_SECONDS - _seconds_since_failure(world)
    if found.verdict is failures.HANG and world.is_unheard:
        return SETTLE_SECONDS - _seconds_since_failure(world)
    if not observed_failure.is_victim(found) or not any(pod.termination is None for pod in world.gang):
        return 0.0
    limit = SETTLE_SECONDS if world.observed.nodes else LOCAL_SETTLE_SECONDS
    return limit - _seconds_since_failure(world)


def settled(world: World, found: Failure) -> Failure:
    """The failure to believe once no better explanation is waited for."""
    return observed_failure.deleted(world.gang) or found if observed_failure.is_victim(found) else found


def _seconds_since_failure(world: World) -> float:
    seen = world.status.failure_time
    return 0.0 if seen is None else world.now - pods.seconds(seen)


def _invalid(world: World) -> Failure | None:
    """What the job asks for can be no pod, and nothing but another job would change that.

    Pods of a job that once had them all were valid: something else makes them so now (an injector, a LimitRange), and
    the job waits for it as for a quota.
    """
    was_whole = any(record.start_time for record in world.status.attempts)
    if not world.observed.invalid or was_whole or any(stage.state == "Complete" for stage in world.status.stages):
        return None
    message = f"{world.observed.refusal}; correct spec.template, and apply the job again after deleting it"
    return Failure(failures.INVALID_POD, message=message)


def _startup_failure(world: World) -> Failure | None:
    if world.seconds_until_startup_deadline() > 0:
        return None
    limit = world.job.spec.run_policy.startup_deadline_seconds
    without_image = _image_failure(world, hopeless_only=False)
    if without_image is not None:
        return without_image
    unheard = pending.UNHEARD if world.is_unheard else None
    _, reason = rank_assignment.why(world) or unheard or pending.why(world.gang, world.count, world.observed.refusal)
    message = f"no rank finished a step within startupDeadlineSeconds: {limit} ({reason})"
    placed = len(world.gang) == world.count and all(pod.node for pod in world.gang)
    return Failure(failures.STARTUP_DEADLINE if placed else failures.NOT_SCHEDULED, message=message)


def _image_failure(world: World, hopeless_only: bool) -> Failure | None:
    found = pending.image_failure(world.gang, hopeless_only)
    if found is None:
        return None
    pod, words = found
    message = f"{words}; correct template.image or give the node access to it"
    return Failure(failures.IMAGE_ERROR, rank=pod.index, node=pod.node, message=message)


def _hang(world: World) -> Failure | None:
    if _is_silent_to_kubelet(world):
        limit = world.job.spec.failure_policy.hang_timeout_seconds
        return Failure(failures.HANG, message=f"rank 0 told its kubelet of no step for hangTimeoutSeconds: {limit}")
    if world.progress is None or world.seconds_until_hang() > 0:
        return None
    limit = world.job.spec.failure_policy.hang_timeout_seconds
    message = f"no progress after step {world.progress.step} for hangTimeoutSeconds: {limit}"
    return Failure(failures.HANG, message=message, step=world.progress.step)


def _is_silent_to_kubelet(world: World) -> bool:
    """Whether a rank 0 that nobody else can hear has told its kubelet that it trains, and does so no longer."""
    running, rank_0 = statuses.condition(world.status, "Running"), world.rank_0
    if not world.is_unheard or running is None or rank_0 is None:
        return False
    return running.reason == pending.UNHEARD_TRAINING[0] and not rank_0.ready and not rank_0.deleting
