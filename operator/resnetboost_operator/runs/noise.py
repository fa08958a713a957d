"""The gradient noise scale of each stage that measured it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from resnetboost_operator.runs import cost
from resnetboost_operator.runs.metricsfile import Measured


class Noise(msgspec.Struct, frozen=True):
    """Noise scales of one stage, in images: in the middle of its steps, and at their end; and its global batch."""

    stage: str
    middle: float
    last: float
    batch: int


def by_stage(measured: Measured, job: Mapping[str, Any]) -> list[Noise]:
    """The stages that have a scale. The job may be of an older version."""
    found = []
    for stage in job["spec"]["stages"]:
        places = cost.places_of(measured, stage["name"])
        scales = [value for value in cost.picked(measured, "noise_scale", places) if value == value]
        if scales:
            devices = stage.get("deviceCount", job["spec"]["device"]["count"])
            batch = devices * stage["localBatchSize"] * stage.get("accumulationSteps", 1)
            found.append(Noise(stage["name"], scales[len(scales) // 2], scales[-1], batch))
    return found
