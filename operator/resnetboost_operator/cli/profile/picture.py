"""Draws profile.png: the parts of a step and its slowest operators."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from resnetboost_api.profile import Operator, Part, Profile
from resnetboost_operator import readable
from resnetboost_operator.cli.profile import text
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, as in a run's report.
_COLORS = {
    "data": "#009E73",
    "forward": "#56B4E9",
    "gradient": "#56B4E9",
    "backward": "#0072B2",
    "reduction": "#E69F00",
    "optimizer": "#CC79A7",
}
_OTHER = "#CCCCCC"
_NARROW = 0.07  # fraction of a step; a narrower part has no room for its name


def draw(profile: Profile) -> bytes:
    """Draw the picture as PNG. Raises `UserError` without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"a picture needs {error.name}; pip install {error.name}") from None
    operators = profile.times.operators[: text.SHOWN]
    with mpl.rc_context(curves.STYLE):
        figure = Figure(figsize=(10, 3 + 0.32 * len(operators)), dpi=110, layout="constrained")
        figure.suptitle(text.title(profile), x=0.01, ha="left", fontsize=13, fontweight="bold")
        if operators:
            step, slowest = figure.subplots(2, 1, height_ratios=(1, max(2, 0.3 * len(operators))))
            _draw_operators(slowest, operators, profile.times.recorded_step_seconds.mean)
        else:
            step = figure.subplots()
        _draw_parts(step, profile.times.parts, profile.times.step_seconds.mean)
        step.set_title(text.summary(profile), fontsize=10, fontweight="normal")
        png = BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


def _draw_parts(axes: "Axes", parts: Sequence[Part], step: float) -> None:
    """Draw one bar for a step, including the time that no part explains."""
    left = 0.0
    for part in parts:
        mean = part.seconds.mean
        words = f"{part.name} {readable.quantity(1000 * mean)} ms"
        bar = axes.barh(0, 1000 * mean, left=1000 * left, color=_COLORS.get(part.name, _OTHER), label=words)
        if mean > _NARROW * step:
            axes.bar_label(bar, [readable.share(mean / step)], label_type="center", color="white", fontsize=9)
        left += mean
    rest = max(0.0, step - left)
    axes.barh(0, 1000 * rest, left=1000 * left, color=_OTHER, label=f"other {readable.quantity(1000 * rest)} ms")
    axes.set_yticks([])
    axes.set_xlim(0, 1000 * max(step, left))
    axes.set_xlabel("ms")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.5), ncols=6, fontsize=8.5, handlelength=1)


def _draw_operators(axes: "Axes", operators: Sequence[Operator], step: float) -> None:
    axes.set_title("Slowest operators, by the shapes of their inputs")
    places = range(len(operators), 0, -1)
    colors = [_COLORS.get(operator.part, _OTHER) for operator in operators]
    bars = axes.barh(places, [1000 * operator.seconds for operator in operators], color=colors)
    shares = [f"{readable.share(found.seconds / step)}, {found.calls:g} calls" for found in operators]
    axes.bar_label(bars, shares, padding=3, fontsize=8)
    axes.set_yticks(places, [text.label(operator) for operator in operators], fontsize=8)
    axes.set_xlim(0, 1300 * max(operator.seconds for operator in operators))
    axes.set_xlabel("ms in a step")
    axes.grid(visible=False, axis="y")
