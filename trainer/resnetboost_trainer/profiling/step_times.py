"""Computes a profile's times from measured steps and recorded operators; must not import MindSpore.

Times of parts come from steps without recording. The end of the forward pass within the gradient's graph comes from
recorded steps: it is where the last operator of a layer or the loss that is not part of a gradient ends.
"""

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from resnetboost_api.profile import Operator, Part, Spread, Times

DATA, GRADIENT, FORWARD, BACKWARD = "data", "gradient", "forward", "backward"
REDUCTION, OPTIMIZER = "reduction", "optimizer"
GRADIENTS = "Gradients/"  # scope of operators from automatic differentiation
_OWN = "Custom"  # MindSpore's kind for every custom operator
_LAYER_DEPTH = 3  # Default/network-ResNet/Conv2D-op0: operators with fewer scopes belong to no layer
_BUCKETS = "buckets-Buckets"  # a cell outside the network: sums gradients while others are still computed


class Executed(Protocol):
    """One execution of an operator, as returned by `op_trace`."""

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
    """Time span of one part of a step, on the host's clock."""

    part: str
    begun_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.begun_ns) / 1e9


class Step(NamedTuple):
    """Seconds of a step and of its parts, their time spans, and whether the step updated THOR's factors."""

    seconds: float
    parts: Mapping[str, float]
    windows: Sequence[Window]
    renewed: bool = False


def times(plain: Sequence[Step], recorded: Sequence[Step], executions: Sequence[Executed]) -> Times:
    """Compute a job's times from steps without recording, recorded steps, and the recorded operators."""
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
    """Split the gradient's windows into a forward and a backward one where their border is recorded.

    `executions` are in the order of their start.
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
    """Pair each operator with the window it started in, dropping those between windows; `windows` are in order."""
    found = []
    for execution in executions:
        place = bisect.bisect_right(windows, execution.begun_ns, key=lambda window: window.begun_ns) - 1
        if place >= 0 and execution.begun_ns < windows[place].ended_ns:
            found.append((windows[place], execution))
    return found


def operators(inside: Iterable[tuple[Window, Executed]], steps: int) -> Sequence[Operator]:
    """Group operators by part, name and shapes, the slowest first; values are means over `steps` steps."""
    together: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for window, execution in inside:
        together[window.part, named(execution, window.part), execution.inputs].append(execution.seconds)
    found = [Operator(*key, calls=len(each) / steps, seconds=sum(each) / steps) for key, each in together.items()]
    return sorted(found, key=lambda operator: -operator.seconds)


def named(execution: Executed, part: str) -> str:
    """Return the operator's kind, or for our C++ operators, which share one kind, the name of their layer."""
    if execution.kind != _OWN:
        return execution.kind or "operator of no kind"
    cells = [scope.partition("-") for scope in execution.name.split("/")[:-1] if "-" in scope]
    layers = [index for index, (_, _, cell) in enumerate(cells) if not cell.startswith("_")]
    if not layers:
        return f"{_of_shapes(execution.inputs, part)} in C++"
    way = [attribute for attribute, _, _ in cells[layers[-1] + 1 :]]
    return ".".join([cells[layers[-1]][2], *way]) + " in C++"


def _of_shapes(inputs: str, part: str) -> str:
    """Identify a C++ operator that MindSpore moved out of its layer's scope, by its part and input shapes."""
    if part == OPTIMIZER:
        return "update of the weights"
    dimensions = "".join(str(shape.count("x") + 1) for shape in inputs.split()[:4])
    if dimensions == "4112":  # images, program, what the forward pass saved, gradient of the features
        return "Trunk"
    return {"44": "Conv2d", "41": "BatchNorm"}.get(dimensions[:2], "operator")


def _parts(steps: Sequence[Step], forward: float | None) -> Mapping[str, Sequence[float]]:
    """Return the seconds in each step by part, with the gradient split if the forward share is known."""
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
    """Return the forward pass's share of the gradient's graph, or None if unknown."""
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
