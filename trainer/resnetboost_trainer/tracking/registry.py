"""Builds the trackers of a job. A new one is a line in `_KINDS`, with a field of its name in `api/.../tracking.py`."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from resnetboost_api.tracking import Callback
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.tracking.mlflow import MLflow
from resnetboost_trainer.tracking.parameters import parameters
from resnetboost_trainer.tracking.redaction import redacted
from resnetboost_trainer.tracking.tensorboard import TensorBoard
from resnetboost_trainer.tracking.tracker import Run, Tracker
from resnetboost_trainer.tracking.tracking import Tracking
from resnetboost_trainer.tracking.worker import Worker

_KINDS: dict[str, Callable[[Any, Environment], Tracker]] = {
    "tensorboard": lambda settings, environment: TensorBoard(settings, environment.checkpoints),
    "mlflow": lambda settings, environment: MLflow(settings),
}


def started(config: Config, environment: Environment) -> Tracking:
    """Start the trackers of the job on its leader; on other ranks none. Raises ConfigError."""
    if config.tracking is None or environment.index != 0:
        return Tracking()
    made = Tracking((Worker(name, tracker) for name, tracker in _trackers(config, environment)), config.tracking.every_steps)
    made.start(run(config, environment))
    return made


def run(config: Config, environment: Environment) -> Run:
    """Describe the attempt to its trackers."""
    return Run(
        job=config.job.name,
        namespace=config.job.namespace,
        uid=config.job.uid,
        stage=config.stage,
        attempt=config.attempt,
        parameters=parameters(config, environment.world_size),
        folder=environment.checkpoints,
    )


def _trackers(config: Config, environment: Environment) -> Iterator[tuple[str, Tracker]]:
    tracking = config.tracking
    assert tracking is not None
    for name, kind in _KINDS.items():
        settings = getattr(tracking, name)
        if settings is not None:
            yield name, kind(settings, environment)
    for place, callback in enumerate(tracking.callbacks):
        yield callback.name, _own(f"tracking.callbacks[{place}].tracker: {callback.tracker}", callback)


def _own(field: str, callback: Callback) -> Tracker:
    """A tracker that the image contains. Only a subclass of `Tracker` is ever called. Raises ConfigError."""
    module, _, name = callback.tracker.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        remedy = "install its package in the trainer's image, or add its folder to PYTHONPATH"
        raise ConfigError(f"{field} cannot be imported ({redacted(str(error))}); {remedy}") from error
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise ConfigError(f"{field} is no tracker; name a subclass of resnetboost_trainer.tracking.Tracker")
    try:
        return found(callback.options)
    except TypeError as error:
        raise ConfigError(f"{field} cannot be made ({redacted(str(error))}); define start and log") from error
