"""Pending gangs: the reason why a gang does not train yet, as one sentence that a user can act on."""

from collections.abc import Sequence

from resnetboost_api import names
from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator.observed.pods import PodView, Waiting
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import rank_assignment, unscheduled
from resnetboost_operator.planning.conditions import EVICTED, QUEUED, brief, not_running
from resnetboost_operator.scheduling.kueue import keys

# Kubelet's reasons for a missing image; the second kind is permanent.
IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError"})
HOPELESS_IMAGE_REASONS = frozenset({"InvalidImageName"})
QUIET_REASONS = frozenset({"", "ContainerCreating", "PodInitializing"})
# Reasons of the condition Running that end by themselves.
PASSING = frozenset(
    {
        "Starting",
        "Restarting",
        "StageComplete",
        "Suspending",
        "GangIncomplete",
        "Publishing",
        "FlavorUnknown",
        QUEUED,
        EVICTED,
    }
)
GATED = "GatedByKueue"
# (reason, message) of a gang that runs but cannot be polled: not known to train, and known to train by its readiness.
_REMEDY = "allow ingress from the operator to it (NetworkPolicy), or run the operator inside the cluster"
UNHEARD = (
    "RankUnreachable",
    "all ranks run, but the operator cannot connect to port 9400 of rank 0, and its kubelet has seen no step either; "
    f"{_REMEDY}. Without a step the gang restarts after twice startupDeadlineSeconds",
)
UNHEARD_TRAINING = (
    "TrainingUnheard",
    "rank 0 reports to its kubelet that it trains, but the operator cannot connect to its port 9400, so the progress "
    f"is unknown; {_REMEDY}",
)


def why(state: ObservedState) -> tuple[str, str]:
    """(reason, message) of the condition Running while the gang comes up."""
    if waits_for_table := rank_assignment.why(state):
        return waits_for_table
    if state.is_unreachable:
        return UNHEARD
    if gated := [pod for pod in state.gang if keys.GATE in pod.gates]:
        return GATED, _gated(state, len(gated))
    return _why_pods(state)


def with_reason(state: ObservedState, status: Status) -> Status:
    """The status with the condition Running False, and why."""
    reason, message = why(state)
    if going := [pod.name for pod in state.stale if pod.deleting and pod.index in state.missing]:
        message += f"; waiting for {readable.listed(going)} of an earlier attempt to end"
    return not_running(status, reason, message, state.time)


def _gated(state: ObservedState, count: int) -> str:
    """Kueue's webhook takes single pods for jobs, in a namespace with a LocalQueue `default` for instance. It leaves
    alone those of an owner that it knows to have a queue.
    """
    problem = f"Kueue holds back {count}/{state.count} pods, each as a job of its own, so that no gang can start"
    remedies = ["add ResNetBoostJob.v1alpha1.resnetboost.io to integrations.externalFrameworks of Kueue"]
    remedies.append("let Kueue get, list and watch resnetboostjobs")
    if not state.job.queue:
        remedies.append(f"give the job the label {names.LABEL_QUEUE} with the name of a LocalQueue")
    if not state.observation.capabilities.kueue_enabled:
        remedies.append("set kueue.enabled of the operator's chart")
    return f"{problem}; {', '.join(remedies)}, then suspend the job and resume it"


def _why_pods(state: ObservedState) -> tuple[str, str]:
    gang, count, obstacle = state.gang, state.count, state.observation.obstacle
    if obstacle is not None:
        return "PodsRefused", f"{len(gang)}/{count} pods exist, the others cannot be created: {brief(obstacle.message)}"
    waiting = [pod.waiting for pod in gang if pod.waiting is not None and pod.waiting.reason not in QUIET_REASONS]
    unbound = [pod for pod in gang if not pod.node]
    if unbound and len(gang) == count and (words := unscheduled.why(state, count - len(unbound))):
        return words
    if waiting:
        first = waiting[0]
        sentence = _sentence(first, len(waiting), len(unbound), count)
        return first.reason, unscheduled.with_causes(state, sentence) if unbound else sentence
    if len(gang) < count:
        return "Starting", f"{len(gang)}/{count} pods exist, the others are being created"
    if unbound:
        return "Starting", f"{count - len(unbound)}/{count} ranks are scheduled"
    running = sum(pod.phase == "Running" for pod in gang)
    return "Starting", f"{running}/{count} ranks run; none has finished a step yet"


def trouble(reason: str) -> str:
    """The kind of trouble that a reason of the condition Running stands for; '' if it passes by itself.

    Kubelet reports in turns that it cannot pull an image and that it backs off: both are the same trouble.
    """
    if reason in PASSING:
        return ""
    return "image" if reason in IMAGE_REASONS else reason


def image_failure(gang: Sequence[PodView], hopeless_only: bool) -> tuple[PodView, str] | None:
    """The first pod whose image cannot be pulled, and kubelet's message; None if there is none."""
    reasons = HOPELESS_IMAGE_REASONS if hopeless_only else HOPELESS_IMAGE_REASONS | IMAGE_REASONS
    for pod in gang:
        if pod.waiting is not None and pod.waiting.reason in reasons:
            return pod, f"{pod.waiting.reason}: {brief(pod.waiting.message)}"
    return None


def _sentence(first: Waiting, waiting: int, unbound: int, count: int) -> str:
    if unbound:
        return f"{count - unbound}/{count} ranks are scheduled: {brief(first.message or first.reason)}"
    return f"{waiting}/{count} ranks wait for kubelet: {first.reason}: {brief(first.message)}"
