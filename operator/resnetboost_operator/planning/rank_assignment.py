"""The rank table of the current attempt: what it waits for, and what publishing it takes; it decides no restart.

The table's digest is written to the status first, then the config map is created, then each pod is annotated with the
digest. A pod without the annotation has not been told: so a crash between any two writes repeats harmless ones, and
nothing but pods and status is needed to go on.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from resnetboost_operator import failures, names, readable
from resnetboost_operator import status as statuses
from resnetboost_operator.failures import Verdict
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests import gang as gang_manifests
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import World
from resnetboost_operator.planning.actions import Annotation
from resnetboost_operator.ranktable import annotations, assembly
from resnetboost_operator.ranktable.annotations import BoundPod, Refusal
from resnetboost_operator.ranktable.chips import Chip
from resnetboost_operator.ranktable.payload import TooLarge

Manifest = dict[str, Any]

SHOWN_PODS = 3
# What no other devices would heal: rules about what a job asks for, not about where its pods are.
HOPELESS = frozenset({"one device for each pod"})


class Publication(msgspec.Struct, frozen=True):
    """Where the rank table of an attempt stands: reason and message of its condition, and what is to be done.

    `digest` is that of the table, '' while there is none. `failure`: there will be none in this attempt, unless the
    device plugin thinks again.
    """

    reason: str
    message: str
    digest: str = ""
    create: tuple[Manifest, ...] = ()
    annotate: tuple[Annotation, ...] = ()
    failure: Failure | None = None

    @property
    def done(self) -> bool:
        """Whether every pod has been told."""
        return self.reason == "Published"


def examine(world: World) -> Publication | None:
    """None where the ranks of the stage meet without a rank table."""
    if not devices.needs_rank_table(world.job.spec.device, world.stage):
        return None
    gang = sorted(world.gang, key=lambda pod: pod.index)
    untold = [pod for pod in gang if pod.termination is None and pod.rank_table != world.status.rank_table]
    if world.status.rank_table is not None and not untold:
        message = f"all {world.count} pods have been told of rank table {world.status.rank_table[:12]}"
        return Publication("Published", message, world.status.rank_table)
    if len(gang) < world.count or not all(pod.node for pod in gang):
        return Publication(*statuses.GANG_INCOMPLETE)
    bound = tuple(BoundPod(pod.name, pod.index, pod.node, pod.devices) for pod in gang)
    missing = annotations.missing(bound)
    return _awaiting(missing, world.count) if missing else _publish(world, bound, untold)


def noted(world: World, found: Publication) -> World:
    """The world with that in its status."""
    status = statuses.with_condition(
        world.status, statuses.RANK_TABLE_READY, found.done, found.reason, found.message, world.time
    )
    return replace(world, status=replace(status, rank_table=found.digest or status.rank_table))


def why(world: World) -> tuple[str, str] | None:
    """(reason, sentence) of a gang that runs and only waits for its rank table; None for any other."""
    table = statuses.condition(world.status, statuses.RANK_TABLE_READY)
    if table is None or table.status == "True" or not devices.needs_rank_table(world.job.spec.device, world.stage):
        return None
    running = [pod for pod in world.gang if pod.phase == "Running"]
    return (table.reason, table.message) if len(running) == world.count else None


def _awaiting(missing: Sequence[str], count: int) -> Publication:
    message = (
        f"{len(missing)} of {readable.plural(count, 'pod')} have no annotation of the device plugin yet, first "
        f"{', '.join(missing[:SHOWN_PODS])}; if it stays so, look at the device plugin's log on their nodes"
    )
    return Publication("AnnotationsMissing", message)


def _publish(world: World, bound: tuple[BoundPod, ...], untold: Sequence[PodView]) -> Publication:
    try:
        built = assembly.build(bound, _chip(world))
        digest = hashlib.sha256(built.data).hexdigest()
        job, stage, attempt = world.job, world.stage, world.status.attempt
        table = gang_manifests.rank_table(job, stage, attempt, built.data, digest, built.ranks)
    except Refusal as refusal:
        hopeless = refusal.rule in HOPELESS
        return _refused(world, refusal, failures.RANK_TABLE_IMPOSSIBLE if hopeless else failures.RANK_TABLE_REFUSED)
    except TooLarge as error:
        return _refused(world, error, failures.RANK_TABLE_IMPOSSIBLE)
    if world.status.rank_table not in (None, digest):
        return _refused(world, _CHANGED, failures.RANK_TABLE_REFUSED)
    annotate = tuple(Annotation(pod.name, pod.uid, names.ANNOTATION_RANK_TABLE, digest) for pod in untold)
    reason, message = "Publishing", f"{readable.plural(len(untold), 'pod')} are being told of rank table {digest[:12]}"
    if world.observed.refusal:
        reason, message = "NotPublished", f"the rank table cannot be published: {world.observed.refusal}"
    return Publication(reason, message, digest, (table,), annotate)


_CHANGED = "the device plugin has told of other devices since the rank table was decided, and a table never changes"


def _refused(world: World, problem: object, verdict: Verdict) -> Publication:
    """The first of the pods stands for them all; the message names them."""
    named = problem.pods if isinstance(problem, Refusal) else ()
    first = next((pod for pod in world.gang if pod.name in named), None)
    rank, node = (first.index, first.node) if first is not None else (None, None)
    return Publication("Refused", str(problem), failure=Failure(verdict, rank, node, message=str(problem)))


def _chip(world: World) -> Chip:
    """As the job says, or else as its nodes do. Raises Refusal where they disagree."""
    told = devices.told_chip(world.job.spec.device)
    if told is not None:
        return told
    chips: dict[Chip, list[str]] = {}
    for pod in world.gang:
        node = world.observed.nodes.get(pod.node)
        if node is not None and node.chip is not None:
            chips.setdefault(node.chip, []).append(pod.name)
    if len(chips) > 1:
        kinds = " and ".join(sorted(chips))
        fewest = min(chips.values(), key=len)
        problem = f"the nodes of the gang have chips {kinds}, which HCCL cannot join; choose nodes of one chip"
        raise Refusal(tuple(fewest), "one chip", f"{problem} with template.nodeSelector")
    return next(iter(chips), devices.DEFAULT_CHIP)
