"""The trainer's configuration of one attempt, built from the job."""

from collections.abc import Sequence
from typing import Any, TypeVar

from resnetboost_api import trainerconfig
from resnetboost_api.device import DeviceKind
from resnetboost_api.fields import Block
from resnetboost_api.policies import Checkpointing, LossLimit
from resnetboost_api.preflight import Preflight
from resnetboost_api.stage import Stage, StartFrom, Training
from resnetboost_api.status import RollBack
from resnetboost_api.storage import ObjectStorage
from resnetboost_api.tracking import Trackers
from resnetboost_api.trainerconfig import (
    ALGORITHMS_OF_0_1_0,
    NEEDED_BY_0_1_0,
    JobReference,
    RankAdasum,
    RankPreflight,
    RankTracking,
    TrainerConfig,
)
from resnetboost_api.writing import without_defaults
from resnetboost_operator.job import Job, ranks_per_summand

Manifest = dict[str, Any]
Part = TypeVar("Part", bound=Block)


def trainer_config(job: Job, stage: Stage, attempt: int, roll_backs: Sequence[RollBack] = ()) -> Manifest:
    """The stage's configuration, with the job's field names and without anything of Kubernetes.

    Defaults are left out, but for those that a trainer of 0.1.0 needs.

    Of nodes the trainer knows only how many ranks share one, for Adasum and the preflight. Its rank comes from the
    environment. `roll_backs` are those of the job's status: an attempt never sees another list than the one it was
    decided with, because each of them begins a new attempt.
    """
    spec, start_from, adasum = job.spec, stage.start_from, None
    if start_from is None and stage != spec.stages[0]:
        start_from = StartFrom(stage=spec.stages[spec.stages.index(stage) - 1].name)
    if stage.adasum is not None:
        averaged = ranks_per_summand(spec.device, stage)
        adasum = RankAdasum(reduce=stage.adasum.reduce, ranks_per_node=averaged)
    rule = spec.failure_policy.divergence
    preflight = None
    if spec.preflight is not None:
        preflight = RankPreflight(**_fields(Preflight, spec.preflight), ranks_per_node=spec.device.per_node or 1)
    tracking = None
    if spec.tracking is not None:
        tracking = RankTracking(**_fields(Trackers, spec.tracking), last_stage=stage == spec.stages[-1])
    config = TrainerConfig(
        job=JobReference(name=job.name, namespace=job.namespace, uid=job.uid),
        stage=stage.name,
        attempt=attempt,
        virtual_ranks=job.virtual_ranks.get(stage.name),
        seed=spec.seed,
        jit_level=spec.jit_level,
        device=DeviceKind(type=spec.device.type),
        model=spec.model,
        dataset=spec.dataset,
        checkpoint=_part(Checkpointing, spec.checkpoint),
        storage=_part(ObjectStorage, spec.storage),
        adasum=adasum,
        divergence=_part(LossLimit, rule) if rule is not None else None,
        roll_backs=tuple(_roll_back(found) for found in roll_backs),
        straggler_factor=spec.failure_policy.straggler.factor,
        preflight=preflight,
        tracking=tracking,
        **{**_fields(Training, stage), "start_from": start_from},
    )
    needed = NEEDED_BY_0_1_0 if config.algorithm in ALGORITHMS_OF_0_1_0 else frozenset()
    found, of_stage = without_defaults(config, needed), _encoded(Training)
    return {name: found[name] for name in sorted(found, key=lambda name: name in of_stage)}  # the job's fields first


def _roll_back(found: RollBack) -> trainerconfig.RollBack:
    return trainerconfig.RollBack(
        attempt=found.attempt,
        stage=found.stage,
        from_step=found.from_step,
        at_most_step=found.at_most_step,
        learning_rate_factor=found.learning_rate_factor,
        skip_to_batch=found.skip_to_batch,
    )


def _encoded(kind: type[Block]) -> set[str]:
    return set(kind.__struct_encode_fields__)


def _part(kind: type[Part], block: Part) -> Part:
    """A block of one of the block's base types, with its fields."""
    return kind(**_fields(kind, block))


def _fields(kind: type[Block], block: Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in kind.__struct_fields__}
