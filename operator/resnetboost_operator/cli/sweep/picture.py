"""Draws sweep.png: each trial's metric by epoch, the best value by trial, and the metric by each parameter."""

import math
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from resnetboost_operator.cli.sweep.space import Categorical, Float, Int, Space
from resnetboost_operator.cli.sweep.text import LABELS
from resnetboost_operator.cli.view import trial_table
from resnetboost_operator.cli.view.trial_table import TrialRow
from resnetboost_operator.runs import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRIAL, _PRUNED, _BEST = "#0072B2", "#CCCCCC", "#D55E00"  # Okabe and Ito's palette
MOST_SHOWN = 10  # parameters
History = tuple[TrialRow, Sequence[tuple[int, float]]]


def draw(title: str, space: Space, histories: Sequence[History], best: TrialRow) -> bytes:
    """Draw the picture as PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    paths = list(space.parameters)[:MOST_SHOWN]
    with mpl.rc_context(curves.STYLE):
        rows = 1 + math.ceil(len(paths) / 2)
        figure = Figure(figsize=(11, 3.5 * rows), dpi=110, layout="constrained")
        figure.suptitle(title.replace("$", r"\$"), x=0.01, ha="left", fontsize=13, fontweight="bold")
        (epochs, progress), *more = figure.subplots(rows, 2, squeeze=False)
        _draw_epochs(epochs, histories, best)
        _draw_progress(progress, space, histories)
        rest = [axes for row in more for axes in row]
        for path, axes in zip(paths, rest, strict=False):
            _draw_parameter(axes, space, path, [row for row, _ in histories], best)
        for axes in rest[len(paths) :]:
            axes.set_visible(False)
        for axes in (epochs, progress, *rest):
            axes.set_ylabel(LABELS[space.metric])
        png = BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


def _color(row: TrialRow, best: TrialRow) -> str:
    if row.number == best.number:
        return _BEST
    return _TRIAL if row.state == "Complete" else _PRUNED


def _draw_epochs(axes: "Axes", histories: Sequence[History], best: TrialRow) -> None:
    axes.set_title("Trials; grey: ended early, orange: the best")
    axes.set_xlabel("epoch")
    for row, values in histories:
        if values:
            front = 3 if row.number == best.number else 2
            axes.plot(*zip(*values, strict=True), color=_color(row, best), marker="o", markersize=3, zorder=front)


def _draw_progress(axes: "Axes", space: Space, histories: Sequence[History]) -> None:
    axes.set_title("Complete trials, and the best so far")
    axes.set_xlabel("trial")
    better = max if space.maximizes else min
    points = [(row.number, row.value) for row, _ in histories if row.state == "Complete" and row.value is not None]
    so_far = [better(value for _, value in points[: place + 1]) for place in range(len(points))]
    axes.plot([number for number, _ in points], [value for _, value in points], "o", color=_TRIAL, markersize=4)
    axes.step([number for number, _ in points], so_far, where="post", color=_BEST)


def _draw_parameter(axes: "Axes", space: Space, path: str, rows: Sequence[TrialRow], best: TrialRow) -> None:
    parameter = space.parameters[path]
    axes.set_xlabel(trial_table.short(path, list(space.parameters)).replace("$", r"\$"))
    if isinstance(parameter, Float | Int) and parameter.log:
        axes.set_xscale("log")
    for row in rows:
        if row.value is not None and path in row.parameters:
            value = row.parameters[path]
            place = trial_table.shown_value(value) if isinstance(parameter, Categorical) else value
            axes.plot([place], [row.value], "o", color=_color(row, best), markersize=5)
