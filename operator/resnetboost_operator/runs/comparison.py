"""Compares runs by their metrics: accuracy, epochs and seconds to accuracies, time of a step, settings that differ."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from resnetboost_operator.runs import cost, metricsfile
from resnetboost_operator.runs.metricsfile import Measured, or_zero
from resnetboost_operator.runs.runfolder import RunFolder

# Accuracies of which the highest that some run reached are compared, where the user names none.
USUAL_TARGETS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
SHOWN_TARGETS = 3
NOTHING = "-"


class Reached(msgspec.Struct, frozen=True):
    """When the test accuracy first was that high."""

    epochs: float
    seconds: float


class Run(msgspec.Struct, frozen=True):
    """A run to compare. `steps`, `epochs` and `seconds` count over all stages, one value per known step.

    Of a run that is known by its log alone, some steps are; what is not known is nan. Seconds are those of steps:
    starts, compiling and evaluations, which depend on the machine's mood, are left out.
    `tests` are the steps with an evaluation, as places in these lists, with their top-1 accuracy.
    """

    name: str
    algorithms: tuple[str, ...]
    steps: Sequence[float]
    loss: Sequence[float]
    epochs: Sequence[float]
    seconds: Sequence[float]
    tests: Sequence[tuple[int, float]]
    step_seconds: float
    settings: Mapping[str, str]

    @property
    def best(self) -> float | None:
        """The highest test accuracy."""
        return max((top1 for _, top1 in self.tests), default=None)

    @property
    def last(self) -> float | None:
        """The last test accuracy."""
        return self.tests[-1][1] if self.tests else None

    def reached(self, target: float) -> Reached | None:
        """When it first had that test accuracy; None if it never had."""
        place = next((place for place, top1 in self.tests if top1 >= target), None)
        return None if place is None else Reached(self.epochs[place], self.seconds[place])


def read(folder: RunFolder, name: str) -> Run:
    """Read a run from its folder, also while it trains. Raises `UserError` for a damaged one."""
    return of(name, folder.read_job()["spec"], metricsfile.current(folder))


def of(name: str, spec: Mapping[str, Any], measured: Measured) -> Run:
    """The run with that spec and these metrics."""
    stages = [stage for stage in spec["stages"] if stage["name"] in measured.stages]
    compiled = {
        place for stage in stages for place in cost.compiling(measured, cost.places_of(measured, stage["name"]))
    }
    times = measured.column("step_seconds")
    usual = or_zero(cost.median(time for place, time in enumerate(times) if place not in compiled))
    top1 = measured.column("top1")
    return Run(
        name=name,
        algorithms=tuple(dict.fromkeys(stage["algorithm"] for stage in stages)),
        steps=[float(step) for step in measured.steps],
        loss=measured.column("loss"),
        epochs=over_stages(measured),
        seconds=list(accumulate(usual if place in compiled else or_zero(time) for place, time in enumerate(times))),
        tests=[(place, value) for place, value in enumerate(top1) if value == value],
        step_seconds=usual,
        settings=settings(spec),
    )


def settings(spec: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a spec by path, such as stages[0].epochs."""
    return dict(_flat(spec, ""))


def over_stages(measured: Measured) -> list[float]:
    """Epochs at each step: every stage counts its own from 0."""
    before, last, stage = 0.0, 0.0, ""
    result = []
    for name, epoch in zip(measured.stages, measured.column("epoch"), strict=True):
        if name != stage:
            before, stage = before + last, name
        last = or_zero(epoch)
        result.append(before + last)
    return result


def targets(runs: Sequence[Run], wanted: Sequence[float] = ()) -> list[float]:
    """The accuracies to compare: those wanted, else the highest of the usual ones that some run reached."""
    if wanted:
        return sorted(set(wanted))
    most = max((run.best for run in runs if run.best is not None), default=0.0)
    return [target for target in USUAL_TARGETS if target <= most][-SHOWN_TARGETS:]


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """The settings that are not the same in all runs, by field, with each run's value."""
    fields = dict.fromkeys(field for run in runs for field in run.settings)
    rows = [(field, [run.settings.get(field, NOTHING) for run in runs]) for field in fields]
    return [(field, values) for field, values in rows if len(set(values)) > 1]


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Fields by path, such as stages[0].epochs."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping | list) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{index}]")
    elif value not in (None, [], ()):
        yield path, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
