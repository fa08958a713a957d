"""Obsolete PodGroups: those of attempts whose pods are gone, because a scheduler may reserve resources for a group.

Volcano counts the minResources of a group until it is deleted, also while a job is suspended or after its end.
"""

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.observed.state import ObservedState

# Phases in which not even the current attempt gets pods.
_IDLE = frozenset({"Queued", "Suspended", "Complete", "Failed"})


def obsolete(state: ObservedState, status: Status) -> tuple[PodGroupView, ...]:
    """The groups that no pod will need again. `status` is the one that the plan writes."""
    alive = {pod.attempt for pod in state.observation.pods if not pod.container_ended}
    spared = alive if status.phase in _IDLE else alive | {statuses.pods_attempt(status)}
    return tuple(group for group in state.observation.pod_groups if not group.deleting and group.attempt not in spared)
