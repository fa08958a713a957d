"""The time that an algorithm adds to the steps of a stage."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from resnetboost_operator import readable
from resnetboost_operator.runs.metricsfile import Measured, or_zero


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The `seconds` of an algorithm, out of the `stage_seconds` of all steps of a stage.

    Both are measured on rank 0, without compilation, which would dominate a short run.
    """

    stage: str
    seconds: float
    stage_seconds: float


def describe(costs: Sequence[Cost]) -> str:
    """Seconds of all stages together, and their share of the steps' time."""
    seconds = sum(cost.seconds for cost in costs)
    share = seconds / max(sum(cost.stage_seconds for cost in costs), 1e-9)
    return f"{readable.quantity(seconds)} s, {readable.share(share)} of the steps' time without compiling"


def updating(measured: Measured) -> list[bool]:
    """True for each step that updates the curvature: these take longer and run their own graph."""
    return [value == value for value in measured.column("layers_updated")]


def compiling(measured: Measured, places: Iterable[int]) -> set[int]:
    """The first step of each attempt with a curvature update, and the first without: both compile.

    Missing steps may have been of either kind.
    """
    updates, left_out = updating(measured), measured.column("left_out")
    first: dict[tuple[int, bool, bool], int] = {}
    for place in places:
        first.setdefault((measured.attempts[place], updates[place], left_out[place] == 1), place)
    return set(first.values())


def stage_seconds(measured: Measured, places: Sequence[int]) -> float:
    """Time of these steps; a compiling step counts as the median of the others plus its update."""
    step_seconds, update_seconds = measured.column("step_seconds"), measured.column("thor_update_seconds")
    updates, compiled = updating(measured), compiling(measured, places)
    settled = [place for place in places if place not in compiled]
    usual = or_zero(median(step_seconds[place] for place in settled if not updates[place]))
    return sum(or_zero(step_seconds[place]) for place in settled) + sum(
        usual + or_zero(update_seconds[place]) for place in compiled
    )


def settled_seconds(measured: Measured, column: str, places: Sequence[int]) -> float:
    """Replace a compiling step by the median of the others: rank 0 may wait in it for another rank that compiles."""
    compiled = compiling(measured, places)
    settled = picked(measured, column, (place for place in places if place not in compiled))
    return sum(or_zero(value) for value in settled) + len(compiled) * or_zero(median(settled))


def mean(values: Sequence[float]) -> float:
    """Mean of the finite values, or nan."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")


def places_of(measured: Measured, stage: str) -> list[int]:
    """Rows of a stage's steps."""
    return [place for place, name in enumerate(measured.stages) if name == stage]


def picked(measured: Measured, column: str, places: Iterable[int]) -> list[float]:
    """Values of a column in these rows."""
    values = measured.column(column)
    return [values[place] for place in places]


def median(values: Iterable[float]) -> float:
    """Median of the finite values, or nan."""
    return statistics.median([value for value in values if value == value] or [float("nan")])
