"""What a rank is asked to do: the config file and the environment, read once, strictly; it holds no defaults.

The operator's CRD fills every default before a config file is written, so nothing is defaulted twice.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from resnetboost_trainer.failures import ConfigError

Precision = Literal["Float32", "Float16", "BFloat16"]
SmoothedOver = Literal["AllClasses", "OtherClasses"]


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of the file's types: the CRD's words, unknown fields refused."""


class Job(_Struct, frozen=True):
    """Whose training this is."""

    name: str
    namespace: str
    uid: str


class Device(_Struct, frozen=True):
    """What kind of device each rank has."""

    type: Literal["CPU", "Ascend", "GPU"]


class Init(_Struct, frozen=True):
    """How fresh weights are drawn; `zero_gamma` of the last BN of each block."""

    convolution: Literal["HeNormal", "HeNormalFanIn", "XavierUniform", "TruncatedNormal"]
    head: Literal["Uniform", "Normal", "TruncatedNormal"]
    zero_gamma: bool


class Weights(_Struct, frozen=True):
    """A file the first stage takes its weights from, all of them or (`New`) all but the head's."""

    path: str
    head: Literal["Keep", "New"]


class Model(_Struct, frozen=True):
    """Which network, how many classes it tells apart, what it begins with, and which parts of it do not learn."""

    name: str
    num_classes: int
    init: Init
    weights: Weights | None = None
    freeze: tuple[Literal["stem", "layer1", "layer2", "layer3", "layer4", "head"], ...] = ()


class Augmentation(_Struct, frozen=True):
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
    crop: Literal["RandomResized", "Padded", "Central"] | None = None
    horizontal_flip: float | None = None


class Dataset(_Struct, frozen=True):
    """Which data; `path` for the kinds that live in files. What is left out depends on the data set: datasets.recipe.

    Without `augmentation` training images are as test images are.
    """

    name: Literal["digits", "npz", "mnist_5k", "MNIST", "CIFAR10", "CIFAR100", "ImageFolder", "MindRecord", "Synthetic"]
    path: str | None = None
    train_folder: str | None = None
    test_folder: str | None = None
    image_size: int | None = None
    evaluation_resize: int | None = None
    augmentation: Augmentation | None = None
    max_corrupt_images: int | None = None
    workers: int | None = None
    autotune: bool = False


class LearningRate(_Struct, frozen=True):
    """Learning rate over a stage; epochs may be fractions."""

    schedule: Literal["Cosine", "Linear", "Step", "Polynomial", "Constant"]
    peak: float
    final: float
    warmup_epochs: float
    gamma: float
    power: float
    milestones: tuple[float, ...] = ()
    schedule_epochs: float | None = None


class Momentum(_Struct, frozen=True):
    """Momentum SGD, also of what THOR preconditioned; weight decay applies to convolution and dense weights only."""

    momentum: float
    weight_decay: float
    nesterov: bool


class Lars(_Struct, frozen=True):
    """A learning rate of its own for each weight matrix, by its length over its gradient's, times the coefficient."""

    trust_coefficient: float


class Ema(_Struct, frozen=True):
    """A moving average of the weights, which keeps `decay` of itself at each step."""

    decay: float


class AllReduceFusion(_Struct, frozen=True):
    """Gradients are summed over the ranks while they are made, in buckets of at most so many bytes."""

    bucket_bytes: int


class DynamicLossScale(_Struct, frozen=True):
    """A loss scale that begins at `initial`, halves when a gradient overflows and doubles after so many steps."""

    initial: float
    growth_steps: int


class Damping(_Struct, frozen=True):
    """What is added to the diagonals of the factors: `initial`, times `decay` in each `decay_epochs`."""

    initial: float
    decay: float
    decay_epochs: float
    split: Literal["Pi", "Symmetric"]


class TraceRule(_Struct, frozen=True):
    """When a layer's factors are updated, by the relative change of their trace; `smoothing` is the old one's share."""

    update_above: float
    stop_below: float
    smoothing: float


class Thor(_Struct, frozen=True):
    """Preconditioning by Kronecker factors, updated every `frequency` steps in blocks of at most `block_size`."""

    frequency: int
    block_size: int
    damping: Damping
    trace_rule: TraceRule
    clip_norm: float | None = None


class Adasum(_Struct, frozen=True):
    """Adaptive summation over nodes of `ranks_per_node` neighbouring ranks, whose mean is taken inside of each.

    `reduce`: of the gradients, before one step of Momentum, or of the changes that each node's own step makes.
    """

    reduce: Literal["Gradient", "Delta"]
    ranks_per_node: int


class LineSearch(_Struct, frozen=True):
    """Armijo's rule: lengths 1, rho, rho^2, ... with rho the `contraction`; `sufficient_decrease` is sigma."""

    contraction: float
    sufficient_decrease: float
    max_trials: int


class Residual(_Struct, frozen=True):
    """A step of Momentum (gamma) at a constant rate (alpha) by what of the gradient lies outside the subspace."""

    momentum: float
    learning_rate: float


class Pca(_Struct, frozen=True):
    """Training in the first principal components of snapshots, by BFGS with a line search or by Momentum SGD."""

    components: int
    solver: Literal["BFGS", "SGD"]
    line_search: LineSearch
    residual: Residual


class Snapshots(_Struct, frozen=True, rename={"from_epoch": "from", "every_epochs": "everyEpochs"}):
    """The weights after `from_epoch + i * every_epochs` epochs, fractions allowed, the newest `keep` of them."""

    every_epochs: float
    from_epoch: float
    keep: int


class StartFrom(_Struct, frozen=True):
    """The stage whose last weights are the first ones of this: of this job, or of another one of its namespace."""

    stage: str
    job_name: str | None = None


class Checkpoint(_Struct, frozen=True):
    """How often to save, how many to keep, and whether to go on from those of an earlier job of this name.

    `keep_compiled_graphs` too, so that a restart does not compile again; left out, it does.
    """

    every_steps: int
    keep: int
    resume: Literal["Never", "IfPresent", "Required"]
    keep_compiled_graphs: bool = False


class Config(_Struct, frozen=True):
    """One attempt of one stage.

    `pca` and `adasum` are there exactly for those algorithms, `thor` for THOR and maybe for Adasum, `clip_norm`
    and `lars` maybe for Momentum, `all_reduce_fusion` maybe for Momentum and PCA. A step takes `accumulation_steps`
    micro batches of `local_batch_size` on each rank. `label_smoothing_over` says among which classes the share goes.
    """

    job: Job
    stage: str
    attempt: int
    seed: int
    device: Device
    model: Model
    dataset: Dataset
    algorithm: Literal["Momentum", "THOR", "Adasum", "PCA"]
    epochs: int
    local_batch_size: int
    accumulation_steps: int
    label_smoothing: float
    precision: Precision
    loss_scale: float
    evaluate_every_epochs: int
    learning_rate: LearningRate
    momentum: Momentum
    checkpoint: Checkpoint
    label_smoothing_over: SmoothedOver = "AllClasses"
    jit_level: Literal["O0", "O1"] | None = None
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


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from rank to rank, and where things are.

    `coordinator` is host:port; None for a single rank, and where the ranks meet by a table that comes into the folder
    `rank_table`: until it has come `rank` is the pod's index. The rank of index 0 is the `leader`, who alone has the
    checkpoints.
    """

    config: Path
    checkpoints: Path | None
    index: int
    rank: int
    leader: int
    world_size: int
    coordinator: tuple[str, int] | None
    rank_table: Path | None
    bind_address: str
    metrics_port: int
    termination_log: Path | None


def load(path: Path) -> Config:
    """Read the config file.

    Raises ConfigError naming the field and what is wrong. Numbers may be written as text ("1e-4" is text to YAML 1.1).
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config file: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply; the operator writes no more than ten levels") from None
    try:
        return msgspec.convert(document, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Read the environment. Raises ConfigError naming the variable, its value and what would be right."""
    rank_table = _path(variables, "RESNETBOOST_RANK_TABLE")
    name = "RESNETBOOST_RANK" if rank_table is None else "RESNETBOOST_INDEX"
    index, world_size = _integer(variables, name, 0), _integer(variables, "RESNETBOOST_WORLD_SIZE", 1)
    if not 0 <= index < world_size:
        raise ConfigError(f"{name}: {index} must be at least 0 and below RESNETBOOST_WORLD_SIZE: {world_size}")
    coordinator = variables.get("RESNETBOOST_COORDINATOR", "") if rank_table is None else ""
    if world_size > 1 and rank_table is None and not coordinator:
        raise ConfigError(f"RESNETBOOST_COORDINATOR: {world_size} ranks need one, as host:port")
    return Environment(
        config=Path(variables.get("RESNETBOOST_CONFIG", "config.yaml")),
        checkpoints=_path(variables, "RESNETBOOST_CHECKPOINTS"),
        index=index,
        rank=index,
        leader=0,
        world_size=world_size,
        coordinator=_address(coordinator) if coordinator and world_size > 1 else None,
        rank_table=rank_table,
        bind_address=variables.get("RESNETBOOST_BIND_ADDRESS", ""),
        metrics_port=_integer(variables, "RESNETBOOST_METRICS_PORT", 9400),
        termination_log=_path(variables, "RESNETBOOST_TERMINATION_LOG"),
    )


def _integer(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} is not a whole number") from error


def _path(variables: Mapping[str, str], name: str) -> Path | None:
    return Path(variables[name]) if variables.get(name) else None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"RESNETBOOST_COORDINATOR: {text!r} is not host:port, e.g. 10.0.0.7:8118")
    return host, int(port)
