"""Makes of measured steps and of operators on the clock what a profile says; it must not import MindSpore.

The time of a part is taken in steps without a recording. Where in the gradient's graph the forward pass ends is seen in
recorded ones: it is over when the last operator of a layer or of the loss has run that is not of a gradient.
"""

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

DATA, GRADIENT, FORWARD, BACKWARD = "data", "gradient", "forward", "backward"
REDUCTION, OPTIMIZER = "reduction", "optimizer"
GRADIENTS = "Gradients/"  # the scope of what automatic differentiation made
_OWN = "Custom"  # what MindSpore calls every operator that is not its own
_LAYER_DEPTH = 3  # Default/network-ResNet/Conv2D-op0: below that it belongs to no layer
_BUCKETS = "buckets-Buckets"  # a cell, but not of the network: it sums gradients while others are still made


class Executed(Protocol):
    """One run of an operator, as `op_trace` returns it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def inputs(self) -> str: ...
    @property
    def begun_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Window(NamedTuple):
    """When a part of one step ran, on the host's clock."""

    part: str
    begun_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.begun_ns) / 1e9


class Step(NamedTuple):
    """Seconds of a step as a whole and of its parts, when those ran, and whether it renewed THOR's factors."""

    seconds: float
    parts: Mapping[str, float]
    windows: Sequence[Window]
    renewed: bool = False


class Spread(msgspec.Struct, frozen=True):
    """Over the measured steps."""

    mean: float
    least: float
    most: float


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a step in seconds, and how much of it recorded operators account for, as a share."""

    name: str
    seconds: Spread
    in_operators: float | None = None


class Operator(msgspec.Struct, frozen=True):
    """An operator on inputs of the same shapes: `calls` and `seconds` are those of one step, in the mean."""

    part: str
    name: str
    inputs: str
    calls: float
    seconds: float


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """`parts` are those of the steps of `step_seconds`, in their order; `operators` the slowest first.

    How an operator's time and the border of forward and backward pass were found: in the recorded steps.
    """

    step_seconds: Spread
    recorded_step_seconds: Spread
    parts: Sequence[Part]
    operators: Sequence[Operator]


def times(plain: Sequence[Step], recorded: Sequence[Step], executions: Sequence[Executed]) -> Times:
    """What the steps say. Of the same job, without and with a recording, which is `executions`."""
    windows = [window for step in recorded for window in divided(step.windows, executions)]
    inside = placed(windows, executions)
    shares, forward = _in_operators(windows, inside), _forward(windows)
    return Times(
        step_seconds=_spread([step.seconds for step in plain]),
        recorded_step_seconds=_spread([step.seconds for step in recorded]),
        parts=[Part(name, _spread(seconds), shares.get(name)) for name, seconds in _parts(plain, forward).items()],
        operators=operators(inside, len(recorded)),
    )


def divided(windows: Sequence[Window], executions: Sequence[Executed]) -> Sequence[Window]:
    """The same, with each of the gradient's in a forward and a backward one where their border is to be seen.

    `executions` in the order they began.
    """
    return [part for window in windows for part in _halves(window, executions)]


def _halves(window: Window, executions: Sequence[Executed]) -> Sequence[Window]:
    first, last = (
        bisect.bisect_left(executions, time, key=lambda found: found.begun_ns)
        for time in (window.begun_ns, window.ended_ns)
    )
    ends = [found.ended_ns for found in executions[first:last] if _is_forward(found.name)]
    if window.part != GRADIENT or not ends:
        return [window]
    border = min(max(ends), window.ended_ns)
    return [Window(FORWARD, window.begun_ns, border), Window(BACKWARD, border, window.ended_ns)]


def _is_forward(name: str) -> bool:
    scopes = name.split("/")
    return scopes[0] == "Default" and len(scopes) >= _LAYER_DEPTH and scopes[1] != _BUCKETS


def placed(windows: Sequence[Window], executions: Iterable[Executed]) -> Sequence[tuple[Window, Executed]]:
    """Each operator with the window it began in; those between windows are left out. `windows` one after another."""
    found = []
    for execution in executions:
        place = bisect.bisect_right(windows, execution.begun_ns, key=lambda window: window.begun_ns) - 1
        if place >= 0 and execution.begun_ns < windows[place].ended_ns:
            found.append((windows[place], execution))
    return found


def operators(inside: Iterable[tuple[Window, Executed]], steps: int) -> Sequence[Operator]:
    """By part, name and shapes, the slowest first; of `steps` steps."""
    together: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for window, execution in inside:
        together[window.part, named(execution, window.part), execution.inputs].append(execution.seconds)
    found = [Operator(*key, calls=len(each) / steps, seconds=sum(each) / steps) for key, each in together.items()]
    return sorted(found, key=lambda operator: -operator.seconds)


def named(execution: Executed, part: str) -> str:
    """The operator's kind; as all of our own in C++ have the same, they have the name of the layer they work for."""
    if execution.kind != _OWN:
        return execution.kind or "operator of no kind"
    cells = [scope.partition("-") for scope in execution.name.split("/")[:-1] if "-" in scope]
    layers = [index for index, (_, _, cell) in enumerate(cells) if not cell.startswith("_")]
    if not layers:
        return f"{_of_shapes(execution.inputs, part)} in C++"
    way = [attribute for attribute, _, _ in cells[layers[-1] + 1 :]]
    return ".".join([cells[layers[-1]][2], *way]) + " in C++"


def _of_shapes(inputs: str, part: str) -> str:
    """What an operator of ours is that MindSpore has moved out of its layer: told by the shapes it was given."""
    if part == OPTIMIZER:
        return "update of the weights"
    dimensions = "".join(str(shape.count("x") + 1) for shape in inputs.split()[:2])
    return {"44": "Conv2d", "41": "BatchNorm"}.get(dimensions, "operator")


def _parts(steps: Sequence[Step], forward: float | None) -> Mapping[str, Sequence[float]]:
    """Seconds in each step by part, the gradient's in two if it is known how."""
    found: dict[str, list[float]] = {}
    for name in steps[0].parts:
        seconds = [step.parts[name] for step in steps]
        if name == GRADIENT and forward is not None:
            found[FORWARD] = [forward * value for value in seconds]
            found[BACKWARD] = [(1 - forward) * value for value in seconds]
        else:
            found[name] = seconds
    return found


def _forward(windows: Sequence[Window]) -> float | None:
    """Its share of the gradient's graph."""
    forward, backward = (sum(w.seconds for w in windows if w.part == part) for part in (FORWARD, BACKWARD))
    return forward / (forward + backward) if forward else None


def _in_operators(windows: Sequence[Window], inside: Iterable[tuple[Window, Executed]]) -> Mapping[str, float]:
    whole: dict[str, float] = defaultdict(float)
    for window in windows:
        whole[window.part] += window.seconds
    running: dict[str, float] = defaultdict(float)
    for window, execution in inside:
        running[window.part] += execution.seconds
    return {part: running[part] / seconds for part, seconds in whole.items() if seconds > 0} if running else {}


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), min(values), max(values))
