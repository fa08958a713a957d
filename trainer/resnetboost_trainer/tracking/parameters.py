"""The settings of a job and a stage as flat names and values, for trackers to compare runs by."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from resnetboost_trainer.config import Config
from resnetboost_trainer.tracking.tracker import Parameter

# Fields that are the same for all stages.
_OF_JOB = ("seed", "jitLevel", "device", "model", "dataset")
# Fields that say nothing about the result, or stand elsewhere.
_LEFT_OUT = ("job", "stage", "attempt", "checkpoint", "preflight", "rollBacks", "stragglerFactor", "tracking")


def parameters(config: Config, ranks: int) -> dict[str, Parameter]:
    """Settings by the names they have in a job file; those of the stage begin with its name and a slash."""
    settings = {name: value for name, value in msgspec.to_builtins(config).items() if name not in _LEFT_OUT}
    of_job = {name: settings.pop(name) for name in _OF_JOB}
    of_stage = {"ranks": ranks, **settings}
    return {**dict(_flat("", of_job)), **dict(_flat(f"{config.stage}/", of_stage))}


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Parameter]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", msgspec.json.encode(value).decode()
        elif value is not None:
            yield f"{prefix}{name}", value
