"""The loss settings of each stage: function, teacher, label smoothing, loss scale and steps skipped for overflow."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from resnetboost_operator.runs import cost
from resnetboost_operator.runs.metricsfile import Measured

_AMONG = {"AllClasses": "all classes", "OtherClasses": "the other classes"}


class Loss(msgspec.Struct, frozen=True):
    """Loss settings of one stage. `scales` are the least and the greatest loss scale, nan if none was recorded."""

    stage: str
    function: str
    teacher: str | None
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
        function=_function(stage.get("loss", {})),
        teacher=_teacher(stage.get("distillation")),
        smoothing=_smoothing(stage),
        precision=stage.get("precision", "Float32"),
        scales=(min(scales), max(scales)),
        left_out=sum(value > 0 for value in _known(measured, "left_out", places)),
        steps=len(places),
    )


def _known(measured: Measured, column: str, places: list[int]) -> Iterator[float]:
    return (value for value in cost.picked(measured, column, places) if value == value)


def _function(loss: Mapping[str, Any]) -> str:
    threshold = loss.get("targetThreshold")
    weighted = "balanced classes" if loss.get("classWeighting") == "Balanced" else "weighted classes"
    return ", ".join(
        [
            "binary cross entropy" if loss.get("function") == "BinaryCrossEntropy" else "cross entropy",
            *([] if threshold is None else [f"targets above {float(threshold):g} are 1"]),
            *([weighted] if "classWeights" in loss or loss.get("classWeighting") == "Balanced" else []),
        ]
    )


def _teacher(distillation: Mapping[str, Any] | None) -> str | None:
    if distillation is None:
        return None
    weight, temperature = (float(distillation[name]) for name in ("alpha", "temperature"))
    return f"{distillation['teacher']}, weight {weight:g}, temperature {temperature:g}"


def _smoothing(stage: Mapping[str, Any]) -> str:
    share = float(stage.get("labelSmoothing", 0))
    return f"{share:g} over {_AMONG[stage.get('labelSmoothingOver', 'AllClasses')]}" if share else "none"
