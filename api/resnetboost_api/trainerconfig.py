"""The config file of one attempt of one stage, which the operator writes and the trainer reads.

Whatever is at its default is left out, so that an older trainer reads the file as long as nothing new is used. Trainers
of 0.1.0 have no defaults of their own: what they need is always written.
"""

import re
from typing import Annotated, ClassVar

from msgspec import Meta

from resnetboost_api.dataset import Dataset
from resnetboost_api.device import DeviceKind
from resnetboost_api.fields import Block, Rule, Seed, StageName
from resnetboost_api.job import JitLevel
from resnetboost_api.jobrules import ACROSS_PARTS
from resnetboost_api.model import Model
from resnetboost_api.optimizers import Summing
from resnetboost_api.policies import Checkpointing, Factor, LossLimit
from resnetboost_api.preflight import Preflight
from resnetboost_api.stage import Stage, Training
from resnetboost_api.storage import ObjectStorage
from resnetboost_api.tracking import Trackers

ALGORITHMS_OF_0_1_0 = ("Momentum", "THOR", "Adasum", "PCA")

_NEEDED = {
    "": "seed device model dataset labelSmoothing lossScale evaluateEveryEpochs learningRate momentum checkpoint",
    "device.": "type",
    "model.": "init",
    "model.init.": "convolution head zeroGamma",
    "model.weights.": "head",
    "dataset.": "augmentation maxCorruptImages",
    "dataset.augmentation.": "minScale maxScale minRatio maxRatio padding brightness contrast saturation mixupAlpha "
    "cutmixAlpha",
    "learningRate.": "schedule peak final warmupEpochs gamma power",
    "momentum.": "momentum weightDecay nesterov",
    "thor.": "frequency blockSize damping traceRule",
    "thor.damping.": "initial decay decayEpochs split",
    "thor.traceRule.": "updateAbove stopBelow smoothing",
    "adasum.": "reduce ranksPerNode",
    "pca.": "components solver lineSearch residual",
    "pca.lineSearch.": "contraction sufficientDecrease maxTrials",
    "pca.residual.": "momentum learningRate",
    "snapshots.": "everyEpochs from keep",
    "checkpoint.": "everySteps keep resume",
}
NEEDED_BY_0_1_0 = frozenset(f"{block}{name}" for block, names in _NEEDED.items() for name in names.split())
"""Fields that a trainer of 0.1.0 refuses a config without, or, as an augmentation, takes for none at all."""


# Parts of a job that a config has as the job has them; of the device it has the type.
_SAME_PARTS = {"stages", "model", "dataset", "device.type", "jitLevel"}


def _of_a_config() -> tuple[Rule, ...]:
    """The rules of a job's stages, and those of a job that look at nothing a config lacks, such as its first stage."""
    alone = [rule for rule in Stage.RULES if "self.deviceCount" not in rule.rule]
    across = [rule for rule in ACROSS_PARTS if _looks_at(rule) <= _SAME_PARTS and "self.stages[" not in rule.rule]
    return *alone, *map(_of_one_stage, across)


def _looks_at(rule: Rule) -> set[str]:
    """The parts of a job that a rule looks at, the old one's included."""
    found = re.findall(r"\b(self|oldSelf)\.(device\.\w+|\w+)", rule.rule)
    return {part if owner == "self" else f"old {part}" for owner, part in found}


def _of_one_stage(rule: Rule) -> Rule:
    """A rule over all stages, for a config, which is a stage and the job around it."""
    return Rule(rule.rule.replace("self.stages", "[self]"), rule.message, rule.field_path.removeprefix(".stages"))


class JobReference(Block, frozen=True, kw_only=True):
    """The job this training belongs to."""

    name: str
    """Name of the job."""
    namespace: str
    """Its namespace."""
    uid: str
    """Its uid, which distinguishes it from an earlier job of the same name."""


class RankAdasum(Summing, frozen=True, kw_only=True):
    """Settings of Adasum that a rank needs."""

    ranks_per_node: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many neighbouring ranks take the mean of their gradients before Adasum sums."""


class RollBack(Block, frozen=True, kw_only=True):
    """One time that the job went back because its training had diverged."""

    attempt: Annotated[int, Meta(ge=0, le=2**53)]
    """Number of the attempt that diverged."""
    stage: StageName
    """Name of its stage."""
    from_step: Annotated[int, Meta(ge=1, le=2**53)]
    """The step that diverged, counted from 1."""
    at_most_step: Annotated[int, Meta(ge=0, le=2**53)]
    """The newest checkpoint of that attempt and earlier ones that may be used."""
    learning_rate_factor: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Factor on the learning rate of all steps since then."""
    skip_to_batch: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Batches of the stage's data order that count as used."""


class RankPreflight(Preflight, frozen=True, kw_only=True):
    """What a rank needs for the preflight."""

    ranks_per_node: Annotated[int, Meta(ge=1, le=1024)] = 1
    """How many neighbouring ranks share a node, as far as the job says so."""


class RankTracking(Trackers, frozen=True, kw_only=True):
    """What a rank needs for the trackers."""

    last_stage: bool = False
    """True if the job is complete with this stage."""


class TrainerConfig(Training, frozen=True, kw_only=True):
    """One attempt of one stage."""

    job: JobReference
    stage: StageName
    """Name of the stage."""
    attempt: Annotated[int, Meta(ge=0, le=2**53)]
    """Number of the attempt; it grows over the whole job."""
    virtual_ranks: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """How many ranks the training is defined by, where the gang has fewer: each of its ranks does the work of several
    neighbouring ones, as more micro batches. Left out where it is the gang's own number."""
    seed: Seed = 0
    """Seed of the initial weights and of the order of the data."""
    jit_level: JitLevel | None = None
    """How MindSpore compiles for Ascend and GPU."""
    device: DeviceKind = DeviceKind()
    model: Model
    dataset: Dataset
    checkpoint: Checkpointing = Checkpointing()
    storage: ObjectStorage = ObjectStorage()
    adasum: RankAdasum | None = None
    divergence: LossLimit | None = None
    """When a loss counts as diverged; never, where it is left out."""
    roll_backs: Annotated[tuple[RollBack, ...], Meta(max_length=10)] = ()
    """The job's roll-backs so far, the earliest first."""
    straggler_factor: Factor = 1.5
    """A rank is slow if its median compute time exceeds the gang's by this factor."""
    preflight: RankPreflight | None = None
    """Left out for an attempt in the pods of the one before, whose devices are known."""
    tracking: RankTracking | None = None
    RULES: ClassVar[tuple[Rule, ...]] = _of_a_config()
