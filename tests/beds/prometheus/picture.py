"""Draws a dashboard from its file and a Prometheus, laid out as in Grafana, where there is no Grafana."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from beds.prometheus.api import Api, Series
from beds.prometheus.dashboards import Dashboard, Panel, filled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (0.54, 0.36)  # of Grafana's unit, horizontally and vertically
_GAP = (0.25, 0.55)  # in units, around a panel
_TITLE_UNITS = 1.6
_PIXELS_PER_INCH = 100
_COLOURS = ("#3f7fd0", "#d9822b", "#2a9d6e", "#c2447a", "#7a5cc2", "#8a7a3c", "#3aa6b9", "#b5523b")
_INK, _PALE, _PAPER, _PAGE = "#24292f", "#7d8590", "#ffffff", "#eef1f4"
_PLAIN = ("gauge", "stat", "table")  # without axes
_LONGEST_LEGEND = 6
_FEWEST_BARS = 4  # fewer bars are drawn equally thin
_MOST_ROWS = 9


class Moment(NamedTuple):
    """The time range (s since the epoch) and the values of the variables."""

    start: float
    end: float
    step: float
    choice: Mapping[str, str]


Found = list[tuple[str, Series]]  # with the legend of each


def draw(dashboard: Dashboard, api: Api, moment: Moment, path: Path, lowest: int) -> list[str]:
    """Write a PNG of the panels that end above that row, in Grafana's units; returns the titles of empty ones."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = [panel for panel in dashboard.panels if panel.place[1] + panel.place[3] <= lowest]
    height = max(panel.place[1] + panel.place[3] for panel in panels) + _TITLE_UNITS
    with mpl.rc_context({"font.size": 8, "font.family": "DejaVu Sans", "text.parse_math": False}):
        figure = Figure(figsize=(24 * _INCHES[0], height * _INCHES[1]), facecolor=_PAGE)
        figure.text(0.008, 1 - 0.8 / height, _headline(dashboard, moment), va="center", size=11, color=_INK)
        found = [_ask(panel, api, moment) for panel in panels]
        for panel, series in zip(panels, found, strict=True):
            _draw_panel(_axes(figure, panel, height), panel, series, moment)
        figure.savefig(path, dpi=_PIXELS_PER_INCH)
    _spare(path)
    return [panel.title for panel, series in zip(panels, found, strict=True) if not series]


def _spare(path: Path) -> None:
    """Reduce the colours, to a third of the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def _headline(dashboard: Dashboard, moment: Moment) -> str:
    chosen = " · ".join(f"{name}: {value}" for name, value in moment.choice.items() if re.fullmatch(r"[\w-]+", value))
    return " · ".join(filter(None, (dashboard.title, chosen)))


def _ask(panel: Panel, api: Api, moment: Moment) -> Found:
    return [
        (_legend(query.legend, series), series)
        for query in panel.queries
        for series in api.range(filled(query.text, moment.choice), moment.start, moment.end, moment.step)
    ]


def _legend(pattern: str, series: Series) -> str:
    """Grafana's legend pattern with the labels filled in; without one, the labels that distinguish the series."""
    if pattern and pattern != "__auto":
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: series.labels.get(found[1], ""), pattern)
    return ", ".join(value for label, value in series.labels.items() if label != "__name__")


def _axes(figure: "Figure", panel: Panel, height: float) -> "Axes":
    """A white card with room for the drawing inside."""
    from matplotlib.patches import FancyBboxPatch

    x, y, width, tall = panel.place
    left, bottom = (x + _GAP[0] / 2) / 24, 1 - (y + tall + _TITLE_UNITS - 0.1) / height
    wide, high = (width - _GAP[0]) / 24, (tall - 0.2) / height
    style = "round,pad=0,rounding_size=0.003"
    card = FancyBboxPatch(
        (left, bottom), wide, high, boxstyle=style, facecolor=_PAPER, edgecolor="#d5dae0", lw=0.8, zorder=-1
    )
    figure.add_artist(card)
    title = figure.text(left + 0.15 / 24, bottom + high - 0.55 / height, panel.title, va="center", size=8.5)
    title.set(color=_INK, weight="bold")
    scale = 0.3 if panel.kind in _PLAIN else 1.3  # room for it at the left
    inner = (left + scale / 24, bottom + 1.0 / height, wide - (scale + 0.3) / 24, high - 2.2 / height)
    axes = figure.add_axes(inner)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=_PALE, length=0, labelsize=7)
    return axes


def _current(found: Found, moment: Moment) -> Found:
    """Series that exist at the end of the range, else those that existed last."""
    return [one for one in found if one[1].points[-1][0] > moment.end - 2 * moment.step] or found


def _draw_panel(axes: "Axes", panel: Panel, found: Found, moment: Moment) -> None:
    kinds: dict[str, Callable[[Axes, Panel, Found, Moment], None]] = {
        "timeseries": _lines,
        "state-timeline": _states,
        "status-history": _states,
        "stat": _number,
        "gauge": _number,
        "table": _table,
    }
    kinds.get(panel.kind, _bars)(axes, panel, found, moment)


def _lines(axes: "Axes", panel: Panel, found: Found, moment: Moment) -> None:
    for number, (legend, series) in enumerate(found):
        colour = _COLOURS[number % len(_COLOURS)]
        for piece, (times, values) in enumerate(_unbroken(series, moment)):
            label = "" if piece else legend
            axes.plot(times, values, color=colour, lw=1.4, label=label, solid_capstyle="round")
    axes.set_xlim(0, moment.end - moment.start)
    axes.margins(y=0.12)
    if panel.unit == "percentunit" or (found and min(v for _, one in found for _, v in one.points) >= 0):
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e6e9ed", lw=0.7)
    axes.locator_params(axis="both", nbins=5)
    axes.yaxis.set_major_formatter(lambda value, _: _readable(value, panel.unit))
    axes.xaxis.set_major_formatter(lambda value, _: datetime.fromtimestamp(value, UTC).strftime("%-M:%S"))
    if found:
        _add_legend(axes)


def _add_legend(axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or (labels and labels[0]):
        kept = [(handle, label) for handle, label in zip(handles, labels, strict=True) if label][:_LONGEST_LEGEND]
        legend = axes.legend(*zip(*kept, strict=True), loc="best", fontsize=6.5, frameon=True, handlelength=1.2)
        legend.get_frame().set(edgecolor="none", alpha=0.75)


def _unbroken(series: Series, moment: Moment) -> Iterator[tuple[list[float], list[float]]]:
    """Pieces of a series without a gap, in seconds since the start."""
    times, values = [], []
    before = None
    for at, value in series.points:
        if before is not None and at - before > 1.5 * moment.step:
            yield times, values
            times, values = [], []
        times.append(at - moment.start)
        values.append(value)
        before = at
    yield times, values


def _states(axes: "Axes", panel: Panel, found: Found, moment: Moment) -> None:
    """Draw a bar from when a series began."""
    names = list(dict.fromkeys(legend for legend, _ in found))
    for number, (legend, series) in enumerate(found):
        colour = _COLOURS[number % len(_COLOURS)]
        pieces = [(times[0], times[-1] - times[0] + moment.step) for times, _ in _unbroken(series, moment)]
        axes.broken_barh(pieces, (names.index(legend) - 0.35, 0.7), color=colour)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, moment.end - moment.start)


def _number(axes: "Axes", panel: Panel, found: Found, moment: Moment) -> None:
    """Draw the newest values in large type, with labels if there are several."""
    axes.set_axis_off()
    shown = _current(found, moment)[:4]
    for number, (legend, series) in enumerate(shown):
        x = (number + 0.5) / len(shown)
        text = legend if panel.settings.get("textMode") == "name" else _readable(series.last, panel.unit)
        size = 17 if len(shown) == 1 else 13
        axes.text(x, 0.55, text, ha="center", va="center", size=size, color=_COLOURS[number], weight="bold")
        if len(shown) > 1:
            axes.text(x, -0.05, legend, ha="center", va="center", size=7, color=_PALE)


def _bars(axes: "Axes", panel: Panel, found: Found, moment: Moment) -> None:
    """Draw the newest values side by side."""
    rows = sorted(_current(found, moment), key=lambda one: one[1].last)[-_MOST_ROWS:]
    axes.barh(range(len(rows)), [series.last for _, series in rows], height=0.6, color=_COLOURS[0])
    axes.set_yticks(range(len(rows)), [legend for legend, _ in rows])
    for number, (_, series) in enumerate(rows):
        axes.text(series.last, number, f" {_readable(series.last, panel.unit)}", va="center", size=7, color=_INK)
    axes.set_xticks([])
    axes.set_ylim(len(rows) - max(len(rows), _FEWEST_BARS) - 0.5, len(rows) - 0.5)
    axes.margins(x=0.15)
    _make_room(axes, [legend for legend, _ in rows])


def _make_room(axes: "Axes", names: Sequence[str]) -> None:
    """Widen the left margin for long names."""
    box = axes.get_position()
    more = min(box.width * 0.5, 0.0042 * max(map(len, names), default=0))
    axes.set_position((box.x0 + more - 0.03, box.y0, box.width - more + 0.03, box.height))


def _table(axes: "Axes", panel: Panel, found: Found, moment: Moment) -> None:
    """Draw a row per series: labels and the newest value."""
    axes.set_axis_off()
    for number, (_, series) in enumerate(_current(found, moment)[:_MOST_ROWS]):
        labels = " · ".join(value for label, value in series.labels.items() if label != "__name__")
        y = 1 - (number + 0.5) / _MOST_ROWS
        axes.text(0, y, labels, va="center", size=7.5, color=_INK, transform=axes.transAxes)
        value = _readable(series.last, panel.unit)
        axes.text(1, y, value, va="center", ha="right", size=7.5, color=_COLOURS[0], transform=axes.transAxes)


def _readable(value: float, unit: str) -> str:
    """A value in its unit, as short as Grafana writes it."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "percent":
        return f"{value:.3g} %"
    if unit == "s":
        return _duration(value)
    if unit in ("bytes", "decbytes"):
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return _scaled(value, 1000, ("", "K", "M", "G"))


def _duration(seconds: float) -> str:
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for factor, name, least in ((3600, "h", 5400), (60, "min", 90), (1, "s", 1), (1e-3, "ms", 1e-3)):
        if size >= least:
            return f"{seconds / factor:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs"


def _scaled(value: float, base: float, names: Sequence[str]) -> str:
    for name in names[:-1]:
        if abs(value) < base:
            return f"{value:.3g} {name}".strip()
        value /= base
    return f"{value:.3g} {names[-1]}"
