"""A checked ResNetBoostJob as the plan sees it; its structs, with rules and defaults, are those of resnetboost_api."""

from typing import Any

import msgspec

from resnetboost_api import stage as stages
from resnetboost_api.dataset import Dataset, DatasetName
from resnetboost_api.device import Chip, Device, DeviceType
from resnetboost_api.job import Spec
from resnetboost_api.model import Init, Model, ModelName, Part, Weights
from resnetboost_api.optimizers import (
    Adasum,
    Damping,
    Lars,
    LineSearch,
    Momentum,
    Pca,
    Residual,
    Thor,
    Topology,
    TraceRule,
)
from resnetboost_api.policies import Checkpoint, CleanPodPolicy, FailurePolicy, Resume, RunPolicy
from resnetboost_api.stage import (
    Algorithm,
    AllReduceFusion,
    DynamicLossScale,
    Ema,
    LearningRate,
    Schedule,
    Snapshots,
    Stage,
    StartFrom,
)
from resnetboost_api.template import (
    ConfigMapVolume,
    EmptyDirVolume,
    EnvVar,
    NfsVolume,
    PersistentVolumeClaimVolume,
    Resources,
    Template,
    Toleration,
    Volume,
    VolumeMount,
)

__all__ = [
    "Adasum",
    "Algorithm",
    "AllReduceFusion",
    "Checkpoint",
    "Chip",
    "CleanPodPolicy",
    "ConfigMapVolume",
    "Damping",
    "Dataset",
    "DatasetName",
    "Device",
    "DeviceType",
    "DynamicLossScale",
    "Ema",
    "EmptyDirVolume",
    "EnvVar",
    "FailurePolicy",
    "Init",
    "Job",
    "Lars",
    "LearningRate",
    "LineSearch",
    "Model",
    "ModelName",
    "Momentum",
    "NfsVolume",
    "Part",
    "Pca",
    "PersistentVolumeClaimVolume",
    "Residual",
    "Resources",
    "Resume",
    "RunPolicy",
    "Schedule",
    "Snapshots",
    "Spec",
    "Stage",
    "StartFrom",
    "Template",
    "Thor",
    "Toleration",
    "Topology",
    "TraceRule",
    "Volume",
    "VolumeMount",
    "Weights",
    "parse",
    "ranks_per_summand",
]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the plan sees it; `uid` is empty and `generation` 1 for a file that no cluster has seen.

    Each of its stages has the settings of its algorithm and a `device_count` of its own.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec


def parse(obj: dict[str, Any]) -> Job:
    """Read an object that `schema.check` found right."""
    metadata = obj["metadata"]
    spec = msgspec.convert(obj["spec"], Spec)
    return Job(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        spec=msgspec.structs.replace(spec, stages=tuple(_completed(stage, spec.device) for stage in spec.stages)),
    )


def _completed(stage: Stage, device: Device) -> Stage:
    adasum = stage.adasum or (Adasum() if stage.algorithm == "Adasum" else None)
    count = stage.device_count or device.count
    return msgspec.structs.replace(stages.completed(stage), adasum=adasum, device_count=count)


def ranks_per_summand(device: Device, stage: Stage) -> int:
    """How many ranks of a stage, neighbours of one node, take the mean of their gradients before Adasum sums."""
    hierarchical = stage.adasum is not None and stage.adasum.topology == "Hierarchical"
    return min(device.per_node or 1, stage.device_count) if hierarchical else 1
