"""Builds the trackers of a job. A new one is a line in `_KINDS`, with a field of its name in `api/.../tracking.py`."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from resnetboost_api.tracking import Callback, Trackers
from resnetboost_trainer.config import Config
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.tracking.mlflow import MLflow
from resnetboost_trainer.tracking.redaction import redacted
from resnetboost_trainer.tracking.tensorboard import TensorBoard
from resnetboost_trainer.tracking.tracker import Parameter, Run, Tracker
from resnetboost_trainer.tracking.tracking import Tracking
from resnetboost_trainer.tracking.worker import Worker

_KINDS: dict[str, Callable[[Any, Path | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": lambda settings, checkpoints: MLflow(settings),
}


def started(config: Config, checkpoints: Path | None, parameters: Mapping[str, Parameter]) -> Tracking:
    """Start the trackers of the job. Raises ConfigError."""
    assert config.tracking is not None
    run = Run(
        job=config.job.name,
        namespace=config.job.namespace,
        uid=config.job.uid,
        stage=config.stage,
        attempt=config.attempt,
        parameters=parameters,
        folder=checkpoints,
    )
    workers = (Worker(name, tracker) for name, tracker in _trackers(config.tracking, checkpoints))
    found = Tracking(workers, config.tracking.every_steps, config.tracking.last_stage)
    found.start(run)
    return found


def _trackers(tracking: Trackers, checkpoints: Path | None) -> Iterator[tuple[str, Tracker]]:
    for name, kind in _KINDS.items():
        settings = getattr(tracking, name)
        if settings is not None:
            yield name, kind(settings, checkpoints)
    for place, callback in enumerate(tracking.callbacks):
        yield callback.name, _own(f"tracking.callbacks[{place}].tracker: {callback.tracker}", callback)


def _own(field: str, callback: Callback) -> Tracker:
    """A tracker that the image contains. Only a subclass of `Tracker` is ever called. Raises ConfigError."""
    module, _, name = callback.tracker.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever its module does
        remedy = "install its package in the trainer's image, or add its folder to PYTHONPATH"
        raise ConfigError(f"{field} cannot be imported ({redacted(str(error))}); {remedy}") from error
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise ConfigError(f"{field} is no tracker; name a subclass of resnetboost_trainer.tracking.Tracker")
    try:
        return found(callback.options)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{field} cannot be made ({redacted(str(error))}); see docs/tracking.md") from error
