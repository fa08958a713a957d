"""Exclusion of nodes: points for the nodes of failed ranks, which decay, and the nodes that the next attempts avoid.

The points follow from `status.attempts`, the exclusions stand in `status.excludedNodes`: another operator goes on from
there. An exclusion ends when its points have decayed, or when pods cannot be scheduled because of it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.policies import NodeExclusion
from resnetboost_api.status import Attempt, ExcludedNode, Status
from resnetboost_operator import readable
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.actions import Event
from resnetboost_operator.planning.conditions import plain

# How many nodes a job avoids at most; the CRD takes no more.
MOST = 32
# How long pods may be unschedulable before an exclusion is held to be the cause. Pods of the gang before, which end
# within a minute, may still have the devices; an autoscaler needs minutes for a new node.
LIFT_SECONDS = 120.0
# What points may lack of afterFailures: they decay from the first moment, and two failures must be able to make 2.
_ROUNDING = 0.5
_DEFAULTS = NodeExclusion()
_REASON_LIMIT = 300


def after_failure(
    status: Status, settings: NodeExclusion | None, ended: Attempt, now: float, *, at_once: bool = False
) -> Status:
    """The status after an attempt whose record it already has: the node is excluded if it has the points for it.

    `settings` None: the job does not count points. `at_once`: exclude the node for this one failure.
    """
    if not ended.node or not (at_once or (settings is not None and is_blamed(ended))):
        return status
    found = settings or _DEFAULTS
    points = points_of(ended.node, status.attempts, found.half_life_seconds, now)
    if at_once:
        points = max(points, found.after_failures)
    if points < found.after_failures - _ROUNDING:
        return status
    reason = f"rank {ended.rank} ended there with {ended.reason} in attempt {ended.attempt}"
    return exclude(status, ended.node, reason, now, found, points)


def exclude(
    status: Status,
    node: str,
    reason: str,
    now: float,
    settings: NodeExclusion | None = None,
    points: float | None = None,
) -> Status:
    """The status with the node excluded until half of `afterFailures` is left of its points (default: afterFailures).

    `reason` is a sentence for people; `settings` are the job's, the defaults without. A node that is excluded already
    is excluded anew. Beyond MOST nodes, the oldest exclusion gives way.
    """
    found = settings or _DEFAULTS
    counted = max(points or 0.0, found.after_failures - _ROUNDING) if points is not None else found.after_failures
    seconds = found.half_life_seconds * math.log2(counted / (found.after_failures / 2))
    entry = ExcludedNode(
        node=node,
        points=round(counted, 2),
        since=pods.timestamp(now),
        until=pods.timestamp(now + seconds),
        reason=readable.cut(plain(reason), _REASON_LIMIT),
    )
    others = tuple(kept for kept in status.excluded_nodes if kept.node != node)
    return replace(status, excluded_nodes=(*others, entry)[-MOST:])


def points_of(node: str, attempts: Sequence[Attempt], half_life_seconds: int, now: float) -> float:
    """The points of a node: 1 for each failure that is blamed on it, halved every half-life since."""
    blamed = (ended for ended in attempts if ended.node == node and is_blamed(ended))
    return math.fsum(math.exp2(min(0.0, pods.seconds(ended.end_time) - now) / half_life_seconds) for ended in blamed)


def points_by_node(jobs: Iterable[Sequence[Attempt]], half_life_seconds: int, now: float) -> dict[str, float]:
    """The points of all nodes that the attempts of these jobs blame, the highest first.

    Mistakes of a job's author count within the job alone: two typos in names of images must not make a node suspect to
    everybody else.
    """
    found: dict[str, float] = defaultdict(float)
    for attempts in jobs:
        blamed = [ended for ended in attempts if is_blamed(ended) and failures.BY_NAME[ended.reason].policy != "fail"]
        for node in {ended.node for ended in blamed if ended.node}:
            found[node] += points_of(node, blamed, half_life_seconds, now)
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def is_blamed(ended: Attempt) -> bool:
    """Whether the end of an attempt gives the node of its rank a point: no disruption, and no victim of another."""
    found = failures.BY_NAME.get(ended.reason)
    return bool(ended.node) and found is not None and found.policy != "disruption" and found not in failures.VICTIMS


def nodes(status: Status) -> tuple[str, ...]:
    """Names of the nodes that new pods avoid."""
    return tuple(found.node for found in status.excluded_nodes)


def without_expired(status: Status, now: float) -> Status:
    """The status without the exclusions whose time is over."""
    kept = tuple(found for found in status.excluded_nodes if pods.seconds(found.until) > now)
    return status if kept == status.excluded_nodes else replace(status, excluded_nodes=kept)


def without_oldest(status: Status) -> Status:
    """The status without the exclusion that began first."""
    oldest = _oldest(status)
    return replace(status, excluded_nodes=tuple(found for found in status.excluded_nodes if found is not oldest))


def lifts(state: ObservedState) -> bool:
    """Whether pods of a whole gang that avoid nodes have found no place; pods that a quota keeps out are no reason."""
    return not state.missing and any(pod.avoids and not pod.node for pod in state.gang)


def _oldest(status: Status) -> ExcludedNode | None:
    return min(status.excluded_nodes, key=lambda found: pods.seconds(found.since), default=None)


def seconds_until_lift(state: ObservedState) -> float:
    """Seconds until pods of a whole gang that avoid nodes have been unschedulable for too long; infinite otherwise."""
    unbound = [pod for pod in state.gang if not pod.node]
    judged = any(pod.looked_at for pod in unbound) or any(group.conditions for group in state.pod_groups)
    if not judged or state.missing or not any(pod.avoids for pod in unbound):
        return float("inf")
    begun = max(pods.seconds(state.status.attempt_creation_time), *(pod.created for pod in unbound))
    return begun + LIFT_SECONDS - state.now


def avoided(state: ObservedState) -> list[str]:
    """Names of the nodes that pods of the gang avoid."""
    return sorted({name for pod in state.gang for name in pod.avoids})


def why_lifted(state: ObservedState) -> str:
    """A sentence about a gang that waits for nodes without those it avoids, and what is done about it."""
    bound = sum(bool(pod.node) for pod in state.gang)
    sentence = f"{bound}/{state.count} ranks could be scheduled without {readable.listed(avoided(state))}"
    oldest = _oldest(state.status)
    return f"{sentence}; {oldest.node} is used again" if oldest is not None else sentence


def seconds_until_expiry(status: Status, now: float) -> float:
    """Seconds until the next exclusion ends; infinite without any."""
    return min((pods.seconds(found.until) - now for found in status.excluded_nodes), default=float("inf"))


def events(before: Status, after: Status, now: float) -> Iterator[Event]:
    """An event for each node that was excluded, and for each that is used again."""
    known = {found.node: found for found in before.excluded_nodes}
    for found in after.excluded_nodes:
        if found != known.pop(found.node, None):
            yield Event("Warning", "NodeExcluded", f"{found.node} is avoided until {found.until}: {found.reason}")
    for found in known.values():
        over = pods.seconds(found.until) <= now
        why = "its failures are long ago" if over else f"before {found.until}: {_why_early(after)}"
        yield Event("Normal" if over else "Warning", "NodeReadmitted", f"{found.node} is used again, {why}")


def _why_early(after: Status) -> str:
    if len(after.excluded_nodes) == MOST:
        return f"no more than {MOST} nodes are avoided"
    return "pods could not be scheduled without it"
