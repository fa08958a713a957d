"""The space of a sweep: fields of a job by path, with the values to try, and the figure to judge by."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from resnetboost_api import wording
from resnetboost_api.evaluations import Metric
from resnetboost_operator import readable
from resnetboost_operator.cli import overrides
from resnetboost_operator.errors import UserError
from resnetboost_operator.validation import jobfile, schema

Manifest = dict[str, Any]
Value = bool | int | float | str

METRICS: tuple[Metric, ...] = get_args(Metric)
MOST_PARAMETERS = 50
MOST_CHOICES = 100
_LARGEST = 2**53  # of an integer that a float holds
_EXAMPLE = "stages[0].learningRate.peak: {type: float, low: 0.01, high: 1, log: true}"
_FIELDS = ("parameters", "metric")
_INNER = 0.375  # a place between the ends, to see whether a field takes fractions


class SpaceError(UserError):
    """A space that cannot be searched; the message names the field, its value and the remedy."""


class _Parameter(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """The values of one field."""


class Float(_Parameter, frozen=True, tag="float"):
    """Numbers from `low` to `high`, both included; evenly by their logarithm with `log`."""

    low: float
    high: float
    log: bool = False

    def examples(self) -> tuple[Value, ...]:
        """Values that must be valid for all others to be likely so."""
        return self.low, self.high, self.low + _INNER * (self.high - self.low)

    def holds(self, value: Any) -> bool:
        """True if the value is one of them."""
        return not isinstance(value, bool) and isinstance(value, int | float) and self.low <= value <= self.high


class Int(_Parameter, frozen=True, tag="int"):
    """Whole numbers from `low`, `step` apart, to `high` at most; evenly by their logarithm with `log`."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def examples(self) -> tuple[Value, ...]:
        """Values that must be valid for all others to be likely so."""
        return self.low, self.last

    @property
    def last(self) -> int:
        """The largest value."""
        return self.low + (self.high - self.low) // self.step * self.step

    def holds(self, value: Any) -> bool:
        """True if the value is one of them."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and self.low <= value <= self.last and (value - self.low) % self.step == 0


class Categorical(_Parameter, frozen=True, tag="categorical"):
    """Some values without an order."""

    choices: tuple[Value, ...]

    def examples(self) -> tuple[Value, ...]:
        """All values."""
        return self.choices

    def holds(self, value: Any) -> bool:
        """True if the value is one of them."""
        return any(type(value) is type(choice) and value == choice for choice in self.choices)


Parameter = Float | Int | Categorical
KINDS = {"float": Float, "int": Int, "categorical": Categorical}


class Space(msgspec.Struct, frozen=True):
    """What a sweep tries: parameters by path, in the file's order, and the figure of the evaluation to judge by."""

    parameters: dict[str, Parameter]
    metric: Metric = "top1"

    @property
    def maximizes(self) -> bool:
        """True if more of the metric is better."""
        return self.metric != "loss"


def read(path: Path) -> Space:
    """Read a file of a space. Raises `SpaceError`."""
    try:
        found = jobfile.load(path)
    except jobfile.JobFileError as error:
        text = str(error).replace("write a ResNetBoostJob into it", f"write parameters into it, such as {_EXAMPLE}")
        raise SpaceError(text.replace("the job file", "the file of the space")) from None
    return of(found, str(path))


def of(found: Mapping[Any, Any], place: str) -> Space:
    """The space with those fields; `place` names it in messages. Raises `SpaceError`."""
    for field in found:
        if field not in _FIELDS:
            raise SpaceError(f"{place}: {_shown(field)} is no field of a space; it has {readable.listed(_FIELDS)}")
    metric = found.get("metric", "top1")
    if metric not in METRICS:
        raise SpaceError(f"{place}: metric: {_shown(metric)} is no metric; use {_either(METRICS)}")
    parameters = found.get("parameters")
    if not isinstance(parameters, Mapping) or not parameters:
        what = "is missing" if "parameters" not in found else f"{_shown(parameters)} has no field to try"
        raise SpaceError(f"{place}: parameters {what}; name a field of the job, such as {_EXAMPLE}")
    if len(parameters) > MOST_PARAMETERS:
        raise SpaceError(f"{place}: parameters has {len(parameters)} fields; use at most {MOST_PARAMETERS}")
    return Space(
        {path: _parameter(path, value, f"{place}: parameters.{path}") for path, value in parameters.items()}, metric
    )


def _parameter(path: Any, value: Any, place: str) -> Parameter:
    """One parameter. Raises `SpaceError`."""
    if not isinstance(path, str):
        raise SpaceError(f"{place} is no path; write one such as {_EXAMPLE}")
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        told = f"type {_shown(kind)} is unknown" if kind is not None else f"{_shown(value)} has no type"
        raise SpaceError(f"{place}: {told}; use {_either(tuple(KINDS))}, as in {_EXAMPLE}")
    try:
        found: Parameter = msgspec.convert(value, KINDS[kind])
    except msgspec.ValidationError as error:
        field = f".{str(error).rpartition('$.')[2].rstrip('`')}" if "$." in str(error) else ""
        reason = str(error).partition(" - at ")[0]
        raise SpaceError(f"{place}{field}: {reason} in {_shown(value)}; {_REMEDY[kind]}") from None
    problem = _problem(found)
    if problem:
        raise SpaceError(f"{place}: {problem}")
    return found


_REMEDY = {
    "float": "write {type: float, low: NUMBER, high: NUMBER}, with log: true if need be",
    "int": "write {type: int, low: NUMBER, high: NUMBER}, with step: NUMBER or log: true if need be",
    "categorical": "write {type: categorical, choices: [VALUE, VALUE]}",
}


def _problem(found: Parameter) -> str:
    """What is wrong with a parameter's values, with a remedy; '' if nothing is."""
    if isinstance(found, Categorical):
        if len({(type(choice), choice) for choice in found.choices}) < max(2, len(found.choices)):
            return f"choices are {_shown(list(found.choices))}; give at least two, each once"
        many = len(found.choices) > MOST_CHOICES
        return f"there are {len(found.choices)} choices; give at most {MOST_CHOICES}" if many else ""
    if not all(math.isfinite(end) and abs(end) <= _LARGEST for end in (found.low, found.high)):
        return f"low {found.low:g} and high {found.high:g} must be finite numbers below 2^53; change them"
    if found.low > found.high:
        return f"low {found.low:g} is above high {found.high:g}; exchange them"
    if found.low == found.high:
        return f"low and high are both {found.low:g}, nothing to try; write this value into the job file"
    if found.log and found.low <= 0:
        return f"low {found.low:g} has no logarithm; use one above 0, or leave log out"
    if isinstance(found, Int) and found.step < 1:
        return f"step {found.step} is no step upwards; use at least 1"
    if isinstance(found, Int) and found.log and found.step != 1:
        return f"step {found.step} and log exclude each other; leave one of them out"
    if isinstance(found, Int) and found.step > found.high - found.low:
        return f"step {found.step} is more than from low {found.low} to high {found.high}; use a smaller one"
    return ""


def check(space: Space, written: Manifest, place: Path | str) -> None:
    """Check that the job takes each field's values, beside its own values of the other fields. Raises `SpaceError`."""
    seen: dict[str, str] = {}
    for path, parameter in space.parameters.items():
        field = path.removeprefix("spec.")
        if field.startswith(("metadata", "apiVersion", "kind")):
            raise SpaceError(f"{place}: parameters.{path} is no setting of the training; name a field of the spec")
        if field in seen:
            raise SpaceError(f"{place}: parameters.{path} is the same field as {seen[field]}; leave one of them out")
        seen[field] = path
        for value in parameter.examples():
            if problem := _refusal(written, path, value):
                raise SpaceError(f"{place}: parameters.{path}, value {_shown(value)}: {problem}")


def _refusal(written: Manifest, path: str, value: Value) -> str:
    try:
        changed = overrides.assign(written, path, value)
    except overrides.OverrideError as error:
        return error.reason
    return next((str(problem) for problem in schema.check(changed)), "")


def own_values(space: Space, defaulted: Manifest) -> dict[str, Value] | None:
    """The job's own values of all parameters; None if one is not in the space."""
    found = {path: _value_at(defaulted, path) for path in space.parameters}
    inside = all(space.parameters[path].holds(value) for path, value in found.items())
    return (
        {path: float(value) if isinstance(space.parameters[path], Float) else value for path, value in found.items()}
        if inside
        else None
    )


def _value_at(job: Manifest, path: str) -> Any:
    holder: Any = job
    try:
        for part in overrides.parts(path):
            holder = holder[part]
    except (KeyError, IndexError, TypeError):
        return None
    return holder


def applied(written: Manifest, values: Mapping[str, Value]) -> Manifest:
    """A copy of the job with those values."""
    for path, value in values.items():
        written = overrides.assign(written, path, value)
    return written


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Mapping | list | tuple) else wording.shown(value)
    return readable.printable(readable.cut(text, 80))


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
