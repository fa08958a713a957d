"""What THOR's updates of the curvature did and cost, by stage, from a run's metrics; it draws and writes nothing."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from resnetboost_operator.runs.metricsfile import Measured, or_zero

# What an update does with a layer, each a column of metrics.csv.
DECISIONS = ("updated", "kept", "stopped", "failed")


class Updates(msgspec.Struct, frozen=True):
    """All updates of one stage, one value an update; a layer whose factors cannot be inverted has `failed`.

    `steps` and `last_step`, the end of the stage, count over all stages. Seconds are rank 0's, without compiling, which
    would hide everything in a short run: `seconds` in updates, `stage_seconds` in all steps; `with_seconds` and
    `without_seconds` are medians of a step, nan if there was none.
    """

    stage: str
    steps: Sequence[int]
    last_step: int
    layers: Mapping[str, Sequence[int]]
    damping: Sequence[float]
    seconds: float
    stage_seconds: float
    with_seconds: float
    without_seconds: float

    @property
    def share(self) -> float:
        """The updates' part of the time of all steps, 0 to 1."""
        return self.seconds / self.stage_seconds if self.stage_seconds else 0.0

    @property
    def candidates(self) -> int:
        """Layers, once for each update."""
        return sum(sum(counts) for counts in self.layers.values())


def by_stage(measured: Measured) -> list[Updates]:
    """The stages that have updates, in their order."""
    happened = [value == value for value in measured.column("layers_updated")]
    stages = dict.fromkeys(name for name, is_update in zip(measured.stages, happened, strict=True) if is_update)
    return [_of(measured, stage, happened) for stage in stages]


def _of(measured: Measured, stage: str, happened: Sequence[bool]) -> Updates:
    whole = [place for place, name in enumerate(measured.stages) if name == stage]
    at = [place for place in whole if happened[place]]
    compiling = _compiling(measured, whole, happened)
    step_seconds = measured.column("step_seconds")
    settled = [place for place in whole if place not in compiling]
    without_seconds = _median(step_seconds[place] for place in settled if not happened[place])
    seconds = {place: or_zero(measured.column("thor_update_seconds")[place]) for place in at}
    return Updates(
        stage=stage,
        steps=[measured.steps[place] for place in at],
        last_step=measured.steps[whole[-1]],
        layers={name: [int(or_zero(value)) for value in _picked(measured, f"layers_{name}", at)] for name in DECISIONS},
        damping=[or_zero(value) for value in _picked(measured, "damping", at)],
        seconds=sum(seconds.values()),
        stage_seconds=sum(or_zero(step_seconds[place]) for place in settled)
        + sum(or_zero(without_seconds) + seconds.get(place, 0.0) for place in compiling),
        with_seconds=_median(step_seconds[place] for place in settled if happened[place]),
        without_seconds=without_seconds,
    )


def _compiling(measured: Measured, places: Iterable[int], happened: Sequence[bool]) -> set[int]:
    """The first step of each attempt with an update, and without one: each kind compiles a graph of its own."""
    first: dict[tuple[int, bool], int] = {}
    for place in places:
        first.setdefault((measured.attempts[place], happened[place]), place)
    return set(first.values())


def _picked(measured: Measured, column: str, places: Iterable[int]) -> list[float]:
    values = measured.column(column)
    return [values[place] for place in places]


def _median(values: Iterable[float]) -> float:
    return statistics.median([value for value in values if value == value] or [float("nan")])
