"""A checked and defaulted ResNetBoostJob as frozen structs; rules and defaults are the CRD's alone."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from resnetboost_operator.ranktable.chips import Chip

__all__ = [
    "Adasum",
    "Algorithm",
    "AllReduceFusion",
    "Checkpoint",
    "CleanPodPolicy",
    "ConfigMapVolume",
    "Damping",
    "Dataset",
    "DatasetName",
    "Device",
    "DeviceType",
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


DeviceType = Literal["CPU", "Ascend", "GPU"]
Rendezvous = Literal["RankTable", "Coordinator"]
ModelName = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "seresnet50",
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet56",
]
ConvolutionInit = Literal["HeNormal", "HeNormalFanIn", "XavierUniform", "TruncatedNormal"]
HeadInit = Literal["Uniform", "Normal", "TruncatedNormal"]
Head = Literal["Keep", "New"]
Part = Literal["stem", "layer1", "layer2", "layer3", "layer4", "head"]
DatasetName = Literal[
    "digits", "npz", "mnist_5k", "MNIST", "CIFAR10", "CIFAR100", "ImageFolder", "MindRecord", "Synthetic"
]
Crop = Literal["RandomResized", "Padded", "Central"]
Algorithm = Literal["Momentum", "THOR", "Adasum", "PCA"]
Schedule = Literal["Cosine", "Linear", "Step", "Polynomial", "Constant"]
DampingSplit = Literal["Pi", "Symmetric"]
Precision = Literal["Float32", "Float16", "BFloat16"]
SmoothedOver = Literal["AllClasses", "OtherClasses"]
JitLevel = Literal["O0", "O1"]
Reduce = Literal["Delta", "Gradient"]
Topology = Literal["Hierarchical", "Flat"]
Solver = Literal["BFGS", "SGD"]
Resume = Literal["Never", "IfPresent", "Required"]
CleanPodPolicy = Literal["Running", "All", "None"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class _Api(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Shared by all structs: snake_case here, camelCase in the object, None where the object has nothing."""


class Device(_Api, frozen=True):
    """The devices of a stage that has no count of its own; each is a pod and a rank; `per_node` share a node.

    What the rest is where it is left out depends on the type, so `devices` says it.
    """

    type: DeviceType
    count: int
    per_node: int | None = None
    resource_name: str | None = None
    chip: Chip | None = None
    rendezvous: Rendezvous | None = None
    runtime_class_name: str | None = None
    shared_memory_size: int | str | None = None
    driver_mounts: bool | None = None


class Init(_Api, frozen=True):
    """How weights are drawn that come from nowhere else."""

    convolution: ConvolutionInit
    head: HeadInit
    zero_gamma: bool


class Weights(_Api, frozen=True):
    """The file whose weights the first stage starts from, with its head or without."""

    path: str
    head: Head


class Model(_Api, frozen=True):
    """The network, what it begins with, and the parts of it that do not learn."""

    name: ModelName
    num_classes: int
    init: Init
    weights: Weights | None = None
    freeze: tuple[Part, ...] | None = None


class Augmentation(_Api, frozen=True):
    """What is done to training images at random; `crop` and `horizontal_flip` are the data set's own where left out."""

    min_scale: float
    max_scale: float
    min_ratio: float
    max_ratio: float
    padding: int
    brightness: float
    contrast: float
    saturation: float
    hue: float
    mixup_alpha: float
    cutmix_alpha: float
    crop: Crop | None = None
    horizontal_flip: float | None = None


class Dataset(_Api, frozen=True):
    """The images; `path` is there for what does not come with the trainer. What is left out the trainer knows."""

    name: DatasetName
    augmentation: Augmentation
    max_corrupt_images: int
    autotune: bool
    path: str | None = None
    train_folder: str | None = None
    test_folder: str | None = None
    image_size: int | None = None
    evaluation_resize: int | None = None
    workers: int | None = None


class LearningRate(_Api, frozen=True):
    """The learning rate over a stage; `milestones` are there for Step and maybe for Polynomial; times are in epochs."""

    schedule: Schedule
    peak: float
    final: float
    warmup_epochs: float
    gamma: float
    power: float
    milestones: tuple[float, ...] | None = None
    schedule_epochs: float | None = None


class Momentum(_Api, frozen=True):
    """How a gradient becomes an update of the weights, also one that THOR has rescaled or Adasum has summed."""

    momentum: float
    weight_decay: float
    nesterov: bool


class AllReduceFusion(_Api, frozen=True):
    """Gradients are summed over the ranks as they are made, in buckets of at most so many bytes."""

    bucket_bytes: int


class DynamicLossScale(_Api, frozen=True):
    """A loss scale that begins at `initial`, halves when a gradient overflows and doubles after so many steps."""

    initial: float
    growth_steps: int


# What a stage in Float16 without any scale has, as THOR below.
DYNAMIC_LOSS_SCALE = DynamicLossScale(initial=65536, growth_steps=2000)


class Lars(_Api, frozen=True):
    """Settings of the rate that each weight matrix has of its own, in a stage of Momentum."""

    trust_coefficient: float


class Ema(_Api, frozen=True):
    """How slowly the average of a stage's weights forgets."""

    decay: float


class Damping(_Api, frozen=True):
    """What is added to the curvature before it is inverted: `initial`, times `decay` in each `decay_epochs`."""

    initial: float
    decay: float
    decay_epochs: float
    split: DampingSplit


class TraceRule(_Api, frozen=True):
    """Which layers an update of the curvature leaves out, by the relative change of its trace."""

    update_above: float
    stop_below: float
    smoothing: float


class Thor(_Api, frozen=True):
    """Settings of the algorithm THOR, and of Adasum where it sums what THOR makes of the gradients."""

    frequency: int
    block_size: int
    damping: Damping
    trace_rule: TraceRule
    clip_norm: float | None = None


# What a stage of THOR without the block has. The CRD cannot say it for a block that other stages must not have; a test
# holds it to the defaults of the block's fields.
THOR = Thor(
    frequency=10,
    block_size=128,
    damping=Damping(initial=0.1, decay=0.5, decay_epochs=10, split="Pi"),
    trace_rule=TraceRule(update_above=0.3, stop_below=0, smoothing=0.8),
)


class Adasum(_Api, frozen=True):
    """Settings of the algorithm Adasum: what is summed, and whether across nodes or across all ranks."""

    reduce: Reduce
    topology: Topology


# What a stage of Adasum without the block has, as THOR above.
ADASUM = Adasum(reduce="Delta", topology="Hierarchical")


class LineSearch(_Api, frozen=True):
    """Which lengths of a step of BFGS are tried, and what makes one good enough."""

    contraction: float
    sufficient_decrease: float
    max_trials: int


class Residual(_Api, frozen=True):
    """How the part of a gradient that lies outside the subspace becomes an update."""

    momentum: float
    learning_rate: float


class Pca(_Api, frozen=True):
    """Settings of the algorithm PCA; `line_search` is for the solver BFGS alone."""

    components: int
    solver: Solver
    line_search: LineSearch
    residual: Residual


# What a stage of PCA without the block has, as THOR above.
PCA = Pca(
    components=32,
    solver="BFGS",
    line_search=LineSearch(contraction=0.55, sufficient_decrease=0.4, max_trials=20),
    residual=Residual(momentum=0.9, learning_rate=0.001),
)


class Snapshots(_Api, frozen=True, rename={"every_epochs": "everyEpochs", "from_epoch": "from"}):
    """At which moments of a stage its weights are kept, and how many of the newest; times are in epochs."""

    every_epochs: float
    from_epoch: float
    keep: int


class StartFrom(_Api, frozen=True):
    """The stage whose last weights a stage starts from: one of this job, or of the job named `job_name`."""

    stage: str
    job_name: str | None = None


class Stage(_Api, frozen=True):
    """One part of the training; `local_batch_size` is per rank, and `device_count` the ranks, always filled in.

    A step takes `accumulation_steps` micro batches of that size on each.

    `thor` is there for the algorithm THOR and may be for Adasum; `adasum` and `pca` are there exactly for those.
    """

    name: str
    algorithm: Algorithm
    epochs: int
    local_batch_size: int
    accumulation_steps: int
    label_smoothing: float
    label_smoothing_over: SmoothedOver
    precision: Precision
    loss_scale: float
    evaluate_every_epochs: int
    learning_rate: LearningRate
    momentum: Momentum
    clip_norm: float | None = None
    lars: Lars | None = None
    dynamic_loss_scale: DynamicLossScale | None = None
    all_reduce_fusion: AllReduceFusion | None = None
    ema: Ema | None = None
    thor: Thor | None = None
    adasum: Adasum | None = None
    pca: Pca | None = None
    snapshots: Snapshots | None = None
    start_from: StartFrom | None = None
    device_count: int = 0


class Checkpoint(_Api, frozen=True):
    """When and where checkpoints are written; without `claim_name` they are lost with the pod."""

    every_steps: int
    keep: int
    resume: Resume
    keep_compiled_graphs: bool
    claim_name: str | None = None


class RunPolicy(_Api, frozen=True):
    """Whether and how long the job runs; all of it may change while the job exists."""

    suspend: bool
    startup_deadline_seconds: int
    clean_pod_policy: CleanPodPolicy
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


class FailurePolicy(_Api, frozen=True):
    """What happens when a rank fails; only `max_restarts` may change while the job exists."""

    max_restarts: int
    backoff_seconds: int
    max_backoff_seconds: int
    stable_after_seconds: int
    hang_timeout_seconds: int


class EnvVar(_Api, frozen=True):
    """One environment variable of the trainer."""

    name: str
    value: str


class Resources(_Api, frozen=True):
    """Quantities by resource name, as the user wrote them: whole numbers or text such as 500m."""

    requests: dict[str, int | str]
    limits: dict[str, int | str]


class Toleration(_Api, frozen=True):
    """One toleration, as Kubernetes has it."""

    operator: Literal["Exists", "Equal"]
    key: str | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class PersistentVolumeClaimVolume(_Api, frozen=True):
    """A claim in the job's namespace."""

    claim_name: str
    read_only: bool


class ConfigMapVolume(_Api, frozen=True):
    """A config map in the job's namespace."""

    name: str


class EmptyDirVolume(_Api, frozen=True):
    """An empty folder that lives as long as the pod."""


class NfsVolume(_Api, frozen=True):
    """A folder of an NFS server."""

    server: str
    path: str
    read_only: bool


class Volume(_Api, frozen=True):
    """One volume; exactly one of its sources is there."""

    name: str
    persistent_volume_claim: PersistentVolumeClaimVolume | None = None
    config_map: ConfigMapVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    nfs: NfsVolume | None = None


class VolumeMount(_Api, frozen=True):
    """Where the trainer sees a volume."""

    name: str
    mount_path: str
    read_only: bool
    sub_path: str | None = None


class Template(_Api, frozen=True):
    """What the pods get beside what the operator sets; the image that is left out is that of the device type."""

    image_pull_policy: PullPolicy
    env: tuple[EnvVar, ...]
    resources: Resources
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    volumes: tuple[Volume, ...]
    volume_mounts: tuple[VolumeMount, ...]
    image: str | None = None


class Spec(_Api, frozen=True):
    """What the user asked for, with every default filled in."""

    seed: int
    device: Device
    model: Model
    dataset: Dataset
    stages: tuple[Stage, ...]
    checkpoint: Checkpoint
    run_policy: RunPolicy
    failure_policy: FailurePolicy
    template: Template
    jit_level: JitLevel | None = None


class Job(_Api, frozen=True):
    """A job as the plan sees it; `uid` is empty and `generation` 1 for a file that no cluster has seen."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec


def parse(obj: dict[str, Any]) -> Job:
    """Read an object that `schema.check` found right and `schema.defaulted` completed."""
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
    thor = stage.thor or (THOR if stage.algorithm == "THOR" else None)
    adasum = stage.adasum or (ADASUM if stage.algorithm == "Adasum" else None)
    pca = stage.pca or (PCA if stage.algorithm == "PCA" else None)
    unscaled = stage.precision == "Float16" and stage.loss_scale == 1
    scale = stage.dynamic_loss_scale or (DYNAMIC_LOSS_SCALE if unscaled else None)
    count = stage.device_count or device.count
    return msgspec.structs.replace(
        stage, dynamic_loss_scale=scale, thor=thor, adasum=adasum, pca=pca, device_count=count
    )


def ranks_per_summand(device: Device, stage: Stage) -> int:
    """How many ranks of a stage, neighbours of one node, take the mean of their gradients before Adasum sums."""
    hierarchical = stage.adasum is not None and stage.adasum.topology == "Hierarchical"
    return min(device.per_node or 1, stage.device_count) if hierarchical else 1
