"""Adasum's results and costs by stage, from a run's metrics and job."""

import math
from collections.abc import Iterable
from typing import Any

from resnetboost_operator.job import parse_job, ranks_per_summand
from resnetboost_operator.runs import cost
from resnetboost_operator.runs.cost import Cost
from resnetboost_operator.runs.metricsfile import Measured


class Sums(Cost, frozen=True, kw_only=True):
    """The sums of one stage, one per step.

    Each sum is of `summands` vectors, one per node or rank. `gain` is the length of the sum over that of the mean, 1
    for vectors that agree and `summands` for independent ones. `cosine` is between the two vectors of a pair, tensor by
    tensor, `least_cosine` the smallest. All three are those of the whole stage, nan where no step has them.
    """

    steps: int
    summands: int
    gain: float
    cosine: float
    least_cosine: float


def by_stage(measured: Measured, job: dict[str, Any]) -> list[Sums]:
    """Sums of the stages that have any, in order. The job must be checked and defaulted."""
    summed = {
        stage for stage, gain in zip(measured.stages, measured.column("adasum_gain"), strict=True) if gain == gain
    }
    if not summed:
        return []  # the run of an older version may lack the field
    spec = parse_job(job).spec
    return [
        _of(measured, stage.name, stage.device_count // ranks_per_summand(spec.device, stage))
        for stage in spec.stages
        if stage.adasum is not None and stage.name in summed
    ]


def _of(measured: Measured, stage: str, summands: int) -> Sums:
    whole = cost.places_of(measured, stage)
    gain, cosine, least = (
        _finite(cost.picked(measured, f"adasum_{name}", whole)) for name in ("gain", "cosine", "cosine_min")
    )
    return Sums(
        stage=stage,
        steps=len(whole),
        summands=summands,
        gain=cost.mean(gain),
        cosine=cost.mean(cosine),
        least_cosine=min(least, default=float("nan")),
        seconds=cost.settled_seconds(measured, "adasum_seconds", whole),
        stage_seconds=cost.stage_seconds(measured, whole),
    )


def _finite(values: Iterable[float]) -> list[float]:
    """The finite values: a sum of opposite vectors has no ratio to their mean, which is 0."""
    return [value for value in values if math.isfinite(value)]
