"""Tracks a job as one run of an MLflow server, found again by the job's uid after a restart on any machine."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from resnetboost_api.tracking import MLflow as Settings
from resnetboost_trainer import __version__
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.tracking.mlflow_client import Client, NotFound
from resnetboost_trainer.tracking.tracker import Outcome, Parameter, Point, Run, Tracker

# The tag by which a job's run is found.
UID = "resnetboost.job_uid"
_EXPERIMENT = "resnetboost"
# Limits of the API: metrics and parameters of a request, characters of a parameter's value and of a tag's.
_MOST_METRICS, _MOST_PARAMETERS, _MOST_VALUE, _MOST_TAG = 1000, 100, 500, 500
_STATUS = {"Succeeded": "RUNNING", "Interrupted": "KILLED"}  # a later stage follows one that succeeded

Item = TypeVar("Item")


class MLflow(Tracker):
    """One run per job: curves and parameters of a stage begin with its name, each attempt is a tag."""

    def __init__(self, settings: Settings, variables: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError naming the field or the variable that is wrong."""
        super().__init__({})
        address = settings.tracking_uri or variables.get("MLFLOW_TRACKING_URI", "")
        if not address:
            raise ConfigError("tracking.mlflow.trackingUri: is missing; give it, or set MLFLOW_TRACKING_URI")
        if not address.startswith(("http://", "https://")) or "@" in address:
            kind = "an address of http or https without user and password"
            raise ConfigError(f"MLFLOW_TRACKING_URI: it must be {kind}, which have variables of their own")
        try:
            self._client = Client(address, variables)
        except OSError as error:
            raise ConfigError(f"MLFLOW_TRACKING_SERVER_CERT_PATH: it cannot be read: {error.strerror}") from error
        self._experiment = settings.experiment or variables.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT

    def start(self, run: Run) -> None:
        found = self._find(run) or self._create(run)
        self._stage, self._attempt = run.stage, run.attempt
        self._id, self._artifacts = found["info"]["run_id"], found["info"]["artifact_uri"]
        known = {item["key"]: item["value"] for item in found["data"].get("params", ())}
        for items in _batches(list(_new_parameters(run, known).items()), _MOST_PARAMETERS):
            self._send(params=[{"key": key, "value": value} for key, value in items])
        tags = {"resnetboost.stage": run.stage, "resnetboost.attempt": str(run.attempt), self._tag: run.stage}
        self._send(tags=_tags(tags))
        self._client.post("runs/update", run_id=self._id, status="RUNNING")

    def log(self, points: Sequence[Point]) -> None:
        metrics = [
            {
                "key": f"{self._stage}/{name}",
                "value": _json(value),
                "timestamp": round(point.time * 1000),
                "step": point.step,
            }
            for point in points
            for name, value in point.values.items()
        ]
        for batch in _batches(metrics, _MOST_METRICS):
            self._send(metrics=batch)

    def save(self, name: str, path: Path) -> None:
        self._client.upload(self._artifacts, name, path)

    def end(self, outcome: Outcome) -> None:
        said = f"{self._stage}: {outcome.name}{f', {outcome.message}' if outcome.message else ''}"
        self._send(tags=_tags({self._tag: said}))
        status = "FINISHED" if outcome.complete else _STATUS.get(outcome.name, "FAILED")
        ended = {} if status == "RUNNING" else {"end_time": _now()}
        self._client.post("runs/update", run_id=self._id, status=status, **ended)

    @property
    def _tag(self) -> str:
        """The tag of this attempt."""
        return f"resnetboost.attempt-{self._attempt}"

    def _send(self, **items: Any) -> None:
        self._client.post("runs/log-batch", run_id=self._id, **items)

    def _find(self, run: Run) -> Any:
        """The run with the job's uid, the earliest of several; None if there is none."""
        condition = f"tags.`{UID}` = '{run.uid}'"
        asked = {"experiment_ids": [self._experiment_id()], "filter": condition, "max_results": 1}
        found = self._client.post("runs/search", **asked, order_by=["attributes.start_time ASC"])
        return next(iter(found.get("runs", ())), None)

    def _create(self, run: Run) -> Any:
        tags = {UID: run.uid, "resnetboost.job": run.job, "resnetboost.namespace": run.namespace}
        tags |= {"resnetboost.version": __version__, "mlflow.source.name": "resnetboost"}
        fields = {"run_name": run.job, "start_time": _now(), "tags": _tags(tags)}
        return self._client.post("runs/create", experiment_id=self._experiment_id(), **fields)["run"]

    def _experiment_id(self) -> str:
        try:
            found = self._client.get("experiments/get-by-name", experiment_name=self._experiment)
        except NotFound:
            return str(self._client.post("experiments/create", name=self._experiment)["experiment_id"])
        return str(found["experiment"]["experiment_id"])


def _new_parameters(run: Run, known: Mapping[str, str]) -> dict[str, str]:
    """The parameters that the run does not have. A parameter never changes: a new value gets the attempt's number."""
    found = {}
    for name, value in run.parameters.items():
        text = _text(value)
        key = name if known.get(name, text) == text else f"{name}.attempt-{run.attempt}"
        if key not in known:
            found[key] = text
    return found


def _text(value: Parameter) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_MOST_VALUE]


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value[:_MOST_TAG]} for key, value in tags.items()]


def _json(value: float) -> float | str:
    """A number as protobuf has it in JSON, which has no word for those that are not finite."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _now() -> int:
    return int(time.time() * 1000)


def _batches(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    return (items[first : first + most] for first in range(0, len(items), most))
