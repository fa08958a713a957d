"""What a rank is asked to do: the config file and the environment, read once and checked.

The file's fields, bounds and defaults are those of resnetboost_api; there is none here.
"""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from resnetboost_api import celrules, crd, stage, structure, wording
from resnetboost_api.dataset import Augmentation, Dataset, RandAugment, RandomErasing
from resnetboost_api.device import DeviceKind as Device
from resnetboost_api.model import Init, Model, Weights
from resnetboost_api.optimizers import AdamW, Damping, Lamb, Lars, LineSearch, Momentum, Pca, Residual, Thor, TraceRule
from resnetboost_api.policies import Checkpointing as Checkpoint
from resnetboost_api.policies import LossLimit
from resnetboost_api.stage import (
    AllReduceFusion,
    Distillation,
    DynamicLossScale,
    Ema,
    LearningRate,
    Loss,
    ParameterGroup,
    Precision,
    SmoothedOver,
    Snapshots,
    StartFrom,
)
from resnetboost_api.trainerconfig import JobReference as Job
from resnetboost_api.trainerconfig import RankAdasum as Adasum
from resnetboost_api.trainerconfig import RankPreflight as Preflight
from resnetboost_api.trainerconfig import RollBack
from resnetboost_api.trainerconfig import TrainerConfig as Config
from resnetboost_api.wording import Schema
from resnetboost_api.writing import without_nulls
from resnetboost_trainer import __version__
from resnetboost_trainer.failures import ConfigError

__all__ = [
    "PLAIN",
    "AdamW",
    "Adasum",
    "AllReduceFusion",
    "Augmentation",
    "Checkpoint",
    "Config",
    "Damping",
    "Dataset",
    "Device",
    "Distillation",
    "DynamicLossScale",
    "Ema",
    "Environment",
    "Init",
    "Job",
    "Lamb",
    "Lars",
    "LearningRate",
    "LineSearch",
    "Loss",
    "LossLimit",
    "Model",
    "Momentum",
    "ParameterGroup",
    "Pca",
    "Precision",
    "Preflight",
    "RandAugment",
    "RandomErasing",
    "Residual",
    "RollBack",
    "SmoothedOver",
    "Snapshots",
    "StartFrom",
    "Thor",
    "TraceRule",
    "Weights",
    "environment",
    "load",
    "parse",
    "recorded",
]

# Set by whoever has started the coordinator already.
COORDINATOR_RUNS = "RESNETBOOST_COORDINATOR_RUNS"
MAX_BYTES = 1 << 20  # a ConfigMap has no more
# Training images as test images are.
PLAIN = Augmentation(crop="Central", horizontal_flip=0)


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from rank to rank, and where things are.

    `coordinator` is host:port; None for a single rank, and where the ranks meet by a table that comes into the folder
    `rank_table`: until it has come `rank` is the pod's index. `coordinator_runs`: somebody else has started it. The
    rank of index 0 is the `leader`, who alone has the checkpoints. `indexes` are those of the ranks' pods, by rank,
    where a table has placed them otherwise than in order.
    """

    config: Path
    checkpoints: Path | None
    index: int
    rank: int
    leader: int
    world_size: int
    coordinator: tuple[str, int] | None
    coordinator_runs: bool = False
    rank_table: Path | None
    bind_address: str
    metrics_port: int
    termination_log: Path | None
    indexes: tuple[int, ...] = ()


def load(path: Path) -> Config:
    """Read the config file.

    Raises ConfigError naming the field and what is wrong. Numbers may be written as text ("1e-4" is text to YAML 1.1).
    """
    try:
        document = yaml.load(_text(path), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config file: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # not UTF-8, or a date or number that is none
        raise ConfigError(f"{path}: not a YAML file: {wording.sentence(str(error))}") from error
    except AttributeError:  # PyYAML's of a !!timestamp that is none
        raise ConfigError(f"{path}: not a YAML file: a tag (!!name) before a value of another kind") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply; the operator writes no more than ten levels") from None
    try:
        return parse(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


class _Loader(yaml.SafeLoader):
    """Refuses aliases: a few lines of aliases of aliases expand without bound, and no operator writes one."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node. Raises ComposerError for an alias."""
        events: Any = self  # PyYAML's parser has no types
        if events.check_event(yaml.AliasEvent):
            problem = "aliases (*name) are not read; write the values out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=events.peek_event().start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def _text(path: Path) -> str:
    """The file's text. Raises OSError, or ValueError for one that is no text or too large."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return data.decode("utf-8")


def parse(document: Any, schema: Schema | None = None) -> Config:
    """Check a config and fill in its defaults. Raises ConfigError naming the field, its value and what would be right.

    Numbers may be written as text ("1e-4" is text to YAML 1.1), and null is as good as nothing.
    """
    schema = schema or crd.schema(Config)
    given = _read(document, schema)
    if not isinstance(given, dict):
        raise ConfigError("a config file is a mapping with job, stage, model and so on; this one is not")
    for field in structure.unknown(given, schema):
        remedy = "use a newer trainer image or leave it out"
        raise ConfigError(
            f"config field {wording.sentence(field, 200)} is not known to this trainer version {__version__}: {remedy}"
        )
    for problem in structure.Structure(schema).problems(given):
        raise ConfigError(wording.sentence(str(problem)))
    for problem in celrules.problems(structure.filled(copy.deepcopy(given), schema), schema):
        raise ConfigError(wording.sentence(str(problem)))
    try:
        return _completed(msgspec.convert(given, Config))
    except msgspec.ValidationError as error:
        raise ConfigError(wording.sentence(str(error))) from error


def recorded(document: Mapping[str, Any]) -> Config:
    """A config as a checkpoint's manifest has it. Raises msgspec.ValidationError for fields of another meaning."""
    return _completed(msgspec.convert(without_nulls(document), Config))


def _completed(config: Config) -> Config:
    adasum = config.adasum or (Adasum() if config.algorithm == "Adasum" else None)
    return msgspec.structs.replace(stage.completed(config), adasum=adasum)


def _read(value: Any, schema: Schema) -> Any:
    """A copy without nulls, with numbers where text was written for them."""
    if isinstance(value, Mapping):
        inner = schema.get("properties", {})
        return {name: _read(item, inner.get(name, {})) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_read(item, schema.get("items", {})) for item in value]
    return _number(value, str(schema.get("type"))) if isinstance(value, str) else value


def _number(text: str, kind: str) -> Any:
    """The number that a text is, where one is due; else the text."""
    try:
        return {"integer": int, "number": float}[kind](text)
    except (KeyError, ValueError):
        return text


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
        coordinator_runs=COORDINATOR_RUNS in variables,
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
