"""What THOR's updates of the curvature did and cost, by stage, from a run's metrics; it draws and writes nothing."""

from collections.abc import Mapping, Sequence

from resnetboost_operator.runs import cost
from resnetboost_operator.runs.cost import Cost
from resnetboost_operator.runs.metricsfile import Measured, or_zero

# What an update does with a layer, each a column of metrics.csv.
DECISIONS = ("updated", "kept", "stopped", "failed")


class Updates(Cost, frozen=True, kw_only=True):
    """All updates of one stage, one value an update; a layer whose factors cannot be inverted has `failed`.

    `steps` and `last_step`, the end of the stage, count over all stages. `with_seconds` and `without_seconds` are
    medians of a step, nan if there was none.
    """

    steps: Sequence[int]
    last_step: int
    layers: Mapping[str, Sequence[int]]
    damping: Sequence[float]
    with_seconds: float
    without_seconds: float

    @property
    def candidates(self) -> int:
        """Layers, once for each update."""
        return sum(sum(counts) for counts in self.layers.values())


def by_stage(measured: Measured) -> list[Updates]:
    """The stages that have updates, in their order."""
    happened = cost.updating(measured)
    stages = dict.fromkeys(name for name, is_update in zip(measured.stages, happened, strict=True) if is_update)
    return [_of(measured, stage, happened) for stage in stages]


def _of(measured: Measured, stage: str, happened: Sequence[bool]) -> Updates:
    whole = cost.places_of(measured, stage)
    at = [place for place in whole if happened[place]]
    compiling = cost.compiling(measured, whole)
    step_seconds = measured.column("step_seconds")
    settled = [place for place in whole if place not in compiling]
    return Updates(
        stage=stage,
        steps=[measured.steps[place] for place in at],
        last_step=measured.steps[whole[-1]],
        layers={
            name: [int(or_zero(value)) for value in cost.picked(measured, f"layers_{name}", at)] for name in DECISIONS
        },
        damping=[or_zero(value) for value in cost.picked(measured, "damping", at)],
        seconds=sum(or_zero(value) for value in cost.picked(measured, "thor_update_seconds", at)),
        stage_seconds=cost.stage_seconds(measured, whole),
        with_seconds=cost.median(step_seconds[place] for place in settled if happened[place]),
        without_seconds=cost.median(step_seconds[place] for place in settled if not happened[place]),
    )
