"""The loss settings of each stage: label smoothing, loss scale and steps skipped for overflow."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from resnetboost_operator.runs import cost
from resnetboost_operator.runs.metricsfile import Measured

_AMONG = {"AllClasses": "all classes", "OtherClasses": "the other classes"}


class Loss(msgspec.Struct, frozen=True):
    """Loss settings of one stage. `scales` are the least and the greatest loss scale, nan if none was recorded."""

    stage: str
    smoothing: str
    precision: str
    scales: tuple[float, float]
    left_out: int
    steps: int


def by_stage(measured: Measured, job: Mapping[str, Any]) -> list[Loss]:
    """The stages that have steps. The job may be of an older version."""
    return [_of(measured, stage) for stage in job["spec"]["stages"] if stage["name"] in measured.stages]


def _of(measured: Measured, stage: Mapping[str, Any]) -> Loss:
    places = cost.places_of(measured, stage["name"])
    scales = list(_known(measured, "loss_scale", places)) or [float("nan")]
    return Loss(
        stage=stage["name"],
        smoothing=_smoothing(stage),
        precision=stage.get("precision", "Float32"),
        scales=(min(scales), max(scales)),
        left_out=sum(value > 0 for value in _known(measured, "left_out", places)),
        steps=len(places),
    )


def _known(measured: Measured, column: str, places: list[int]) -> Iterator[float]:
    return (value for value in cost.picked(measured, column, places) if value == value)


def _smoothing(stage: Mapping[str, Any]) -> str:
    share = float(stage.get("labelSmoothing", 0))
    return f"{share:g} over {_AMONG[stage.get('labelSmoothingOver', 'AllClasses')]}" if share else "none"
