"""Rank assignment: build the current attempt's rank table from its pods' devices, and publish it.

The table's digest is written to the status first, then the config map is created, then each pod is annotated with the
digest. A pod without the annotation does not have the table yet: so a crash between any two writes only repeats
harmless ones, and pods and status are all that is needed to go on.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from resnetboost_api import failures, names
from resnetboost_api.failures import FailureClass
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.rank_table import rank_table
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.actions import Annotation
from resnetboost_operator.planning.conditions import GANG_INCOMPLETE, with_condition
from resnetboost_operator.ranktable import annotations, assembly
from resnetboost_operator.ranktable.annotations import BoundPod, Refusal
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.ranktable.payload import TooLarge

Manifest = dict[str, Any]

SHOWN_PODS = 3
# Rules about what a job asks for, not about where its pods are: other devices would not help.
HOPELESS = frozenset({"one device for each pod"})


class RankAssignment(msgspec.Struct, frozen=True):
    """State of an attempt's rank table: reason and message of its condition, and the actions to publish it.

    `digest` is that of the table, '' while there is none. `failure`: this attempt gets no table, unless the device
    plugin corrects its annotations.
    """

    reason: str
    message: str
    digest: str = ""
    create: tuple[Manifest, ...] = ()
    annotate: tuple[Annotation, ...] = ()
    failure: Failure | None = None

    @property
    def done(self) -> bool:
        """Whether every pod is annotated with the table's digest."""
        return self.reason == "Published"


def assign(state: ObservedState) -> RankAssignment | None:
    """The rank assignment of the current attempt, None where the stage needs no rank table."""
    if not devices.needs_rank_table(state.job.spec.device, state.stage):
        return None
    gang = sorted(state.gang, key=lambda pod: pod.index)
    unannotated = [pod for pod in gang if pod.termination is None and pod.rank_table != state.status.rank_table]
    if state.status.rank_table is not None and not unannotated:
        message = f"all {state.count} pods have rank table {state.status.rank_table[:12]}"
        return RankAssignment("Published", message, state.status.rank_table)
    if len(gang) < state.count or not all(pod.node for pod in gang):
        return RankAssignment(*GANG_INCOMPLETE)
    bound = tuple(BoundPod(pod.name, pod.index, pod.node, pod.devices) for pod in gang)
    missing = annotations.missing(bound)
    return _awaiting(missing, state.count) if missing else _publish(state, bound, unannotated)


def with_assignment(state: ObservedState, found: RankAssignment) -> ObservedState:
    """The state with the rank assignment in its status."""
    status = with_condition(
        state.status, statuses.RANK_TABLE_READY, found.done, found.reason, found.message, state.time
    )
    return replace(state, status=replace(status, rank_table=found.digest or status.rank_table))


def why(state: ObservedState) -> tuple[str, str] | None:
    """(reason, message) while a running gang waits only for its rank table; None otherwise."""
    table = statuses.condition(state.status, statuses.RANK_TABLE_READY)
    if table is None or table.status == "True" or not devices.needs_rank_table(state.job.spec.device, state.stage):
        return None
    running = [pod for pod in state.gang if pod.phase == "Running"]
    return (table.reason, table.message) if len(running) == state.count else None


def _awaiting(missing: Sequence[str], count: int) -> RankAssignment:
    message = (
        f"{len(missing)} of {readable.plural(count, 'pod')} have no annotation of the device plugin yet, first "
        f"{', '.join(missing[:SHOWN_PODS])}; if it stays so, look at the device plugin's log on their nodes"
    )
    return RankAssignment("AnnotationsMissing", message)


def _publish(state: ObservedState, bound: tuple[BoundPod, ...], unannotated: Sequence[PodView]) -> RankAssignment:
    try:
        built = assembly.build(bound, _chip(state))
        digest = hashlib.sha256(built.data).hexdigest()
        job, stage, attempt = state.job, state.stage, state.pods_attempt
        table = rank_table(job, stage, attempt, built.data, digest, built.ranks)
    except Refusal as refusal:
        hopeless = refusal.rule in HOPELESS
        return _refused(state, refusal, failures.RANK_TABLE_IMPOSSIBLE if hopeless else failures.RANK_TABLE_REFUSED)
    except TooLarge as error:
        return _refused(state, error, failures.RANK_TABLE_IMPOSSIBLE)
    if state.status.rank_table not in (None, digest):
        return _refused(state, _CHANGED, failures.RANK_TABLE_REFUSED)
    annotate = tuple(Annotation(pod.name, pod.uid, names.ANNOTATION_RANK_TABLE, digest) for pod in unannotated)
    if state.observation.obstacle is not None:
        message = f"the rank table cannot be published: {state.observation.obstacle.message}"
        return RankAssignment("NotPublished", message, digest, (table,), annotate)
    message = f"assigning rank table {digest[:12]} to {readable.plural(len(unannotated), 'pod')}"
    return RankAssignment("Publishing", message, digest, (table,), annotate)


_CHANGED = "the device plugin has reported other devices since the rank table was made, and a table never changes"


def _refused(state: ObservedState, problem: object, failure_class: FailureClass) -> RankAssignment:
    """The failure names the first of the pods; the message names them all."""
    named = problem.pods if isinstance(problem, Refusal) else ()
    first = next((pod for pod in state.gang if pod.name in named), None)
    rank, node = (first.index, first.node) if first is not None else (None, None)
    return RankAssignment("Refused", str(problem), failure=Failure(failure_class, rank, node, message=str(problem)))


def _chip(state: ObservedState) -> Chip:
    """The chip that the job names, or else its nodes' labels. Raises Refusal where the nodes differ."""
    named = devices.named_chip(state.job.spec.device)
    if named is not None:
        return named
    chips: dict[Chip, list[str]] = {}
    for pod in state.gang:
        node = state.observation.nodes.get(pod.node)
        if node is not None and node.chip is not None:
            chips.setdefault(node.chip, []).append(pod.name)
    if len(chips) > 1:
        kinds = " and ".join(sorted(chips))
        fewest = min(chips.values(), key=len)
        problem = f"the nodes of the gang have chips {kinds}, which HCCL cannot join; choose nodes of one chip"
        raise Refusal(tuple(fewest), "one chip", f"{problem} with template.nodeSelector")
    return next(iter(chips), devices.DEFAULT_CHIP)
