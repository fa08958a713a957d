"""Prints a profile as text and two tables."""

from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from resnetboost_api.profile import LayerTime, Operator, Part, Profile, Spread
from resnetboost_operator import readable
from resnetboost_operator.cli.profile import launches
from resnetboost_operator.cli.profile.launches import Launches

SHOWN = 15  # operators, layers
_SHAPES = 2  # of an operator's inputs


def show(screen: Console, profile: Profile) -> None:
    """Print the profile."""
    times = profile.times
    screen.print(title(profile), style="bold", soft_wrap=True)
    screen.print(summary(profile), soft_wrap=True)
    screen.print(Group(Text(), _parts(times.parts, times.step_seconds), Text()))
    if found := launches.together(times):
        screen.print(Group(_launches([*launches.by_part(times), found], times.step_seconds.mean), Text()))
    if times.operators:
        screen.print(_operators(times.operators, times.recorded_step_seconds.mean))
        screen.print(Text())
    if profile.layers:
        screen.print(_layers(profile.layers, times.step_seconds.mean))
        screen.print(Text())
    for line in notes(profile):
        screen.print(line, style="dim", soft_wrap=True)


def title(profile: Profile) -> str:
    """One line about what was profiled."""
    ranks = readable.ranks(profile.device, [profile.ranks])
    threads = f" of {readable.plural(profile.threads, 'thread')}" if profile.device == "CPU" else ""
    trained = f"{profile.model} on {profile.dataset} by {profile.algorithm}"
    return f"{profile.job}, stage {profile.stage}: {trained}, {ranks}{threads}"


def summary(profile: Profile) -> str:
    """One line about its speed."""
    step = profile.times.step_seconds
    each = f"{readable.plural(profile.steps, 'step')} of {_ms(step.mean)} ms ({_ms(step.least)} to {_ms(step.most)})"
    return (
        f"{each}, {readable.quantity(profile.images_per_step / step.mean)} images/s, {profile.images_per_step} a step"
    )


def notes(profile: Profile) -> Iterator[str]:
    """Notes on how to read the tables."""
    times = profile.times
    if any(part.name == "forward" for part in times.parts):
        yield "forward and backward are one graph: its time, divided where the last layer's operator ended"
    if profile.ranks == 1:
        yield "one rank reduces nothing: its reduction is the gradient's norm; --ranks 2 shows a collective"
    if profile.renewals is not None:
        steps, found = profile.steps, profile.renewals
        measured = f"in {found.plain} of {steps} steps, and in {found.recorded} of the {steps} recorded ones"
        yield f"THOR's factors, part of the optimizer: renewed {measured}; in training in one of {found.frequency}"
    if profile.layers:
        yield "layers: within the operator Trunk, over the plain steps; forward, then the gradients"
    if times.operators:
        recorded = f"{readable.plural(profile.steps, 'more step')} of {_ms(times.recorded_step_seconds.mean)} ms"
        yield f"operators and that border: as MindSpore's profiler recorded {recorded}"
    else:
        yield f"MindSpore's profiler left nothing on {profile.device} that is read here; its own files are kept"


def label(operator: Operator) -> str:
    """The operator's name and attributes, without the settings of our own operators."""
    return " ".join([operator.name, *operator.inputs.split()[:_SHAPES]])


def _parts(parts: Sequence[Part], step: Spread) -> Table:
    table = _table("part", "ms", "share", "least", "most", "in operators")
    for part in parts:
        inside = readable.share(part.in_operators) if part.in_operators is not None else ""
        table.add_row(part.name, *_cells(part.seconds, step.mean), inside)
    table.add_section()
    together = sum(part.seconds.mean for part in parts)
    table.add_row("parts together", _ms(together), readable.share(together / step.mean))
    table.add_row("a step", *_cells(step, step.mean))
    return table


def _launches(found: Sequence[Launches], step: float) -> Table:
    table = _table("launching operators", "launches", "ms outside operators", "share", "us each")
    for part in found:
        each = readable.quantity(1e6 * part.each)
        table.add_row(part.part, f"{part.count:.4g}", _ms(part.seconds), readable.share(part.seconds / step), each)
    return table


def _cells(seconds: Spread, step: float) -> Sequence[str]:
    return _ms(seconds.mean), readable.share(seconds.mean / step), _ms(seconds.least), _ms(seconds.most)


def _operators(operators: Sequence[Operator], step: float) -> Table:
    table = _table("operator", "part", "calls", "ms", "share")
    for operator in operators[:SHOWN]:
        cells = (f"{operator.calls:g}", _ms(operator.seconds), readable.share(operator.seconds / step))
        table.add_row(label(operator), operator.part, *cells)
    rest = operators[SHOWN:]
    if rest:
        seconds, calls = sum(found.seconds for found in rest), sum(found.calls for found in rest)
        table.add_row(f"{len(rest)} more", "", f"{calls:g}", _ms(seconds), readable.share(seconds / step))
    return table


def _layers(layers: Sequence[LayerTime], step: float) -> Table:
    table = _table("layer", "convolution", "norm", "of norm", "of images", "of weights", "ms", "share")
    slowest = sorted(layers, key=lambda layer: -layer.seconds)
    for layer in slowest[:SHOWN]:
        forward = layer.convolution, layer.normalization
        gradients = layer.normalization_gradient, layer.images_gradient, layer.weights_gradient
        parts = [_ms(seconds) for seconds in (*forward, *gradients)]
        table.add_row(layer.name, *parts, _ms(layer.seconds), readable.share(layer.seconds / step))
    if rest := slowest[SHOWN:]:
        seconds = sum(layer.seconds for layer in rest)
        table.add_row(f"{len(rest)} more", *[""] * 5, _ms(seconds), readable.share(seconds / step))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    return readable.quantity(1000 * seconds)
