"""Draws runs over each other: loss and test accuracy by step, by epoch and by second."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from resnetboost_operator.runs import curves
from resnetboost_operator.runs.comparison import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, as in a run's report; a second round of it is dashed.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Style = dict[str, Any]
FORMATS = ("png", "svg", "pdf")


def draw(runs: Sequence[Run], form: str) -> bytes:
    """Draw the picture in one of FORMATS."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**curves.STYLE, "svg.hashsalt": "resnetboost"}):
        figure = Figure(figsize=(13, 7), dpi=110, layout="constrained")
        rows = figure.subplots(2, 3, sharey="row", sharex="col")
        for column, what in enumerate(("step", "epoch", "seconds in steps")):
            for place, run in enumerate(runs):
                style: Style = {
                    "color": COLORS[place % len(COLORS)],
                    "linestyle": "--" if place >= len(COLORS) else "-",
                }
                _draw(rows[0][column], rows[1][column], run, _positions(run)[column], style)
            rows[1][column].set_xlabel(what)
            rows[0][column].set_xlim(left=0)
        rows[0][0].set_ylabel("training loss, moving mean")
        rows[1][0].set_ylabel("test accuracy, top-1, %")
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        picture = BytesIO()
        figure.savefig(picture, format=form, metadata={"Date": None} if form == "svg" else None)
    return picture.getvalue()


def _positions(run: Run) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    return run.steps, run.epochs, run.seconds


def _draw(loss: "Axes", accuracy: "Axes", run: Run, positions: Sequence[float], style: Style) -> None:
    smooth = curves.moving_mean(run.loss, max(1, len(run.loss) // 100))
    name = run.name.removeprefix("_")  # matplotlib leaves out of a legend what begins with _
    loss.plot(positions, smooth, label=f"{name} ({', '.join(run.algorithms)})".replace("$", r"\$"), **style)
    points = [(positions[place], 100 * top1) for place, top1 in run.tests]
    if points:
        accuracy.plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
