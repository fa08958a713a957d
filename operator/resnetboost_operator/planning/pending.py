"""Why a gang does not run yet, as one sentence somebody can act on; it looks at pods and changes nothing."""

from collections.abc import Sequence

from resnetboost_operator.observed.pods import PodView, Waiting

# Kubelet's reasons for an image it does not have; the second kind never gets better.
IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError"})
HOPELESS_IMAGE_REASONS = frozenset({"InvalidImageName"})
QUIET_REASONS = frozenset({"", "ContainerCreating", "PodInitializing"})
# Reasons of the condition Running that end by themselves.
PASSING = frozenset({"Starting", "Restarting", "StageComplete", "Suspending", "GangIncomplete", "Publishing"})
MESSAGE_LIMIT = 600
# (reason, sentence) of a gang that runs but cannot be asked, and that is not known to train or that is, by kubelet.
_REMEDY = "allow ingress from the operator to it (NetworkPolicy), or run the operator inside the cluster"
UNHEARD = (
    "RankUnreachable",
    "all ranks run, but the operator gets no connection to port 9400 of rank 0, and its kubelet has seen no step "
    f"either; {_REMEDY}. Without a step the gang restarts after twice startupDeadlineSeconds",
)
UNHEARD_TRAINING = (
    "TrainingUnheard",
    "rank 0 tells its kubelet that it trains, but the operator gets no connection to its port 9400, so no progress is "
    f"known; {_REMEDY}",
)


def why(gang: Sequence[PodView], count: int, refusal: str) -> tuple[str, str]:
    """(reason, sentence) of the condition Running while a gang of `count` ranks comes up."""
    if refusal:
        return "PodsRefused", f"{len(gang)}/{count} pods exist, no more are let in: {_brief(refusal)}"
    waiting = [pod.waiting for pod in gang if pod.waiting is not None and pod.waiting.reason not in QUIET_REASONS]
    unbound = [pod for pod in gang if not pod.node]
    if waiting:
        first = waiting[0]
        return first.reason, _sentence(first, len(waiting), len(unbound), count)
    if len(gang) < count:
        return "Starting", f"{len(gang)}/{count} pods exist, the others are being created"
    if unbound:
        return "Starting", f"{count - len(unbound)}/{count} ranks are scheduled"
    running = sum(pod.phase == "Running" for pod in gang)
    return "Starting", f"{running}/{count} ranks run; none has finished a step yet"


def trouble(reason: str) -> str:
    """The trouble that a reason of the condition Running stands for; '' if it passes by itself.

    Kubelet says in turns that it cannot pull an image and that it waits to try again: that is one trouble.
    """
    if reason in PASSING:
        return ""
    return "image" if reason in IMAGE_REASONS else reason


def image_failure(gang: Sequence[PodView], hopeless_only: bool) -> tuple[PodView, str] | None:
    """The first pod that has no image, and kubelet's words; None if all have theirs."""
    reasons = HOPELESS_IMAGE_REASONS if hopeless_only else HOPELESS_IMAGE_REASONS | IMAGE_REASONS
    for pod in gang:
        if pod.waiting is not None and pod.waiting.reason in reasons:
            return pod, f"{pod.waiting.reason}: {_brief(pod.waiting.message)}"
    return None


def _sentence(first: Waiting, waiting: int, unbound: int, count: int) -> str:
    if unbound:
        return f"{count - unbound}/{count} ranks are scheduled: {_brief(first.message or first.reason)}"
    return f"{waiting}/{count} ranks wait for kubelet: {first.reason}: {_brief(first.message)}"


def _brief(message: str) -> str:
    """One line of bounded length: kubelet repeats itself at length, and users may write names of any form."""
    return " ".join(message.split())[:MESSAGE_LIMIT]
