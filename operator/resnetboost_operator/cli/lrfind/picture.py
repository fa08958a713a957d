"""Draws lr-find.png: the loss by the learning rate, with the suggestion."""

from io import BytesIO

from resnetboost_operator.cli.lrfind.sweep import Suggestion, Sweep
from resnetboost_operator.cli.lrfind.text import CLIP
from resnetboost_operator.errors import UserError
from resnetboost_operator.runs import curves

_LOSS, _SMOOTHED, _DIVERGED, _SUGGESTED = "#CCCCCC", "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's palette


def draw(title: str, sweep: Sweep, suggestion: Suggestion | None) -> bytes:
    """Draw the picture as PNG. Raises `UserError` without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"a picture needs {error.name}; pip install {error.name}") from None
    smoothed = sweep.smoothed
    with mpl.rc_context(curves.STYLE):
        figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
        axes = figure.subplots()
        axes.plot(sweep.rates, sweep.losses, color=_LOSS, label="loss of a step")
        axes.plot(sweep.rates, smoothed, color=_SMOOTHED, label="smoothed")
        if suggestion is not None:
            axes.axvline(suggestion.rate, color=_SUGGESTED, label=f"suggested: {suggestion.rate:.2g}")
            if suggestion.diverged is not None:
                axes.axvline(suggestion.diverged, color=_DIVERGED, label=f"diverged: {suggestion.diverged:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=title)
        axes.set_ylim(min(sweep.losses), min(max(sweep.losses), CLIP * smoothed[0]))
        axes.legend()
        png = BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()
