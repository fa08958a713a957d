"""Unscheduled gangs: why no scheduler has found nodes for all pods, by what it reports and where it reports nothing."""

from resnetboost_operator import readable
from resnetboost_operator.observed.state import SCHEDULER_SILENT_SECONDS, ObservedState
from resnetboost_operator.planning import exclusion, placement
from resnetboost_operator.planning.conditions import brief
from resnetboost_operator.scheduling import gang_scheduler

SCHEDULER_SILENT = "SchedulerSilent"
DEFAULT_SCHEDULER = "default-scheduler"
_OF_NODES = " nodes are available: "
_NO_SUCH_LABEL = "didn't match Pod's node affinity/selector"


def why(state: ObservedState, bound: int) -> tuple[str, str] | None:
    """(reason, message) of a whole gang with `bound` pods on nodes; None where the conditions of its pods say it."""
    if found := _of_group(state):
        reason, words = found
        sentence = f"{bound}/{state.count} ranks are scheduled: {brief(words or reason)}{_lacking(state, words)}"
        return reason, with_causes(state, sentence)
    return (SCHEDULER_SILENT, _silence(state)) if state.seconds_until_scheduler_silent() <= 0 else None


def with_causes(state: ObservedState, message: str) -> str:
    """The message, and what schedulers do not say: which nodes the pods avoid, which labels they ask for, and that no
    node has the label of the topology constraint.
    """
    if avoided := exclusion.avoided(state):
        message = f"{message.rstrip('.')}; the pods avoid {readable.listed(avoided)} (status.excludedNodes)"
    labels = state.job.spec.template.node_selector
    if labels and _NO_SUCH_LABEL in message:
        wanted = readable.listed([f"{name}={value}" for name, value in sorted(labels.items())])
        message = f"{message.rstrip('.')}; template.nodeSelector asks for nodes with {wanted}"
    key = gang_scheduler.topology_key(state.job)
    if not key or state.observation.labelled_nodes != 0:
        return message
    missing = f"no node has the label {key}: correct scheduling.schedulingConstraints or label the nodes"
    return f"{message.rstrip('.')}; {missing}"


def _of_group(state: ObservedState) -> tuple[str, str] | None:
    """What the gang scheduler in charge reports of the attempt's group."""
    scheduler = placement.scheduler(state)
    if scheduler is None:
        return None
    words = (scheduler.why(group) for group in state.pod_groups if group.api == scheduler.api)
    return next((found for found in words if found is not None), None)


def _lacking(state: ObservedState, words: str) -> str:
    """What nodes lack for single pods: kube-scheduler's words for a group leave it out."""
    said = [pod.waiting.message for pod in state.gang if pod.waiting is not None and not pod.node]
    found = next((message.partition(". ")[0] for message in said if _OF_NODES in message), "")
    return f"; {brief(found)}" if found and found not in words else ""


def _silence(state: ObservedState) -> str:
    scheduler = placement.scheduler(state)
    remedy = scheduler.silence if scheduler is not None else gang_scheduler.SILENCE
    name = state.job.spec.scheduling.scheduler_name or DEFAULT_SCHEDULER
    seconds = f"{SCHEDULER_SILENT_SECONDS:.0f} s"
    return f"no scheduler named {name} has looked at {readable.plural(state.count, 'pod')} for {seconds}; {remedy}"
