"""Draws report.png from a run's metrics: loss, accuracy, step time and the algorithms' figures."""

import math
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from resnetboost_operator import readable
from resnetboost_operator.runs import cost
from resnetboost_operator.runs.adasum import Sums
from resnetboost_operator.runs.metricsfile import Measured, or_zero
from resnetboost_operator.runs.pca import Descent
from resnetboost_operator.runs.thor import Updates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, distinct for colour-blind readers.
_TRAIN, _TEST, _MARK = "#0072B2", "#D55E00", "#7f7f7f"
_PARTS = (
    ("compute_seconds", "compute", "#56B4E9"),
    ("collective_seconds", "collective", "#E69F00"),
    ("data_wait_seconds", "data wait", "#009E73"),
)
_BACK = "#D55E00"
_OTHER = "#CCCCCC"
_DECISIONS = {"updated": "#56B4E9", "kept": "#DDDDDD", "stopped": "#999999", "failed": "#D55E00"}
_DAMPING = "#CC79A7"
_COSINE, _LEAST_COSINE = "#009E73", "#E69F00"
_GRADIENT_SHARE = "#E69F00"
STYLE: Any = {
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "font.size": 10,
}


class Did(msgspec.Struct, frozen=True):
    """Figures of the algorithms of a run, by stage; empty for an algorithm that no stage used."""

    updates: Sequence[Updates] = ()
    sums: Sequence[Sums] = ()
    descents: Sequence[Descent] = ()
    changed_ranks: bool = False
    """Whether the run had different numbers of ranks."""

    @property
    def names(self) -> list[str]:
        """The optional panels, in order."""
        panels = {
            "curvature": self.updates,
            "adaptive sums": self.sums,
            "subspace": self.descents,
            "number of ranks": self.changed_ranks,
        }
        return [name for name, shown in panels.items() if shown]


def draw(measured: Measured, title: str, did: Did) -> bytes:
    """Draw the picture as PNG, with a panel for each algorithm."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        panels = 3 + len(did.names)
        figure = Figure(figsize=(10, 3.5 * panels), dpi=110, layout="constrained")
        loss, accuracy, time, *more = figure.subplots(panels, 1, sharex=True)
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
        _draw_loss(loss, measured)
        _draw_accuracy(accuracy, measured)
        _draw_step_time(time, measured)
        for name, axes in zip(did.names, more, strict=True):
            _draw_panel(name, axes, measured, did)
        (time, *more)[-1].set_xlabel("step")
        for index, axes in enumerate((loss, accuracy, time, *more)):
            _mark_attempts(axes, measured, labelled=index == 0)
            axes.set_xlim(0, 1.01 * max(1, len(measured.steps)))
        png = BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


def _draw_panel(name: str, axes: "Axes", measured: Measured, did: Did) -> None:
    match name:
        case "curvature":
            _draw_curvature(axes, did.updates)
        case "adaptive sums":
            _draw_sums(axes, measured, did.sums)
        case "subspace":
            _draw_descent(axes, measured, did.descents)
        case "number of ranks":
            _draw_ranks(axes, measured)


def _draw_loss(axes: "Axes", measured: Measured) -> None:
    axes.set_title("Loss")
    axes.set_ylabel("cross entropy")
    raw = measured.column("loss")
    axes.plot(measured.steps, raw, color=_TRAIN, alpha=0.25, linewidth=0.8)
    _plot_by_stage(axes, measured, raw, "train, labels smoothed as the job says; moving mean", smooth=True)
    _plot_by_stage(axes, measured, measured.column("test_loss"), "test")
    axes.legend(loc="upper right", fontsize=9)


def _draw_accuracy(axes: "Axes", measured: Measured) -> None:
    axes.set_title("Accuracy, top-1")
    axes.set_ylabel("%")
    axes.set_ylim(0, 102)
    tests = [100 * value for value in measured.column("top1")]
    last = next((f", {value:.1f} % at the end" for value in reversed(tests) if value == value), "")
    train = [100 * value for value in measured.column("accuracy")]
    _plot_by_stage(axes, measured, train, "train, moving mean", smooth=True)
    _plot_by_stage(axes, measured, tests, f"test{last}")
    axes.legend(loc="lower right", fontsize=9)


def _plot_by_stage(
    axes: "Axes", measured: Measured, values: Sequence[float], label: str, smooth: bool = False, color: str = _TRAIN
) -> None:
    """Draw a line for each stage, without a connection between stages."""
    window = max(1, len(values) // 100)
    style: Any = {"color": color} if smooth else {"color": _TEST, "marker": "o", "markersize": 3.5}
    for stage in dict.fromkeys(measured.stages):
        places = [index for index, name in enumerate(measured.stages) if name == stage]
        part = [values[index] for index in places]
        shown = moving_mean(part, window) if smooth else part
        points = [(measured.steps[index], value) for index, value in zip(places, shown, strict=True)]
        known = [point for point in points if point[1] == point[1]] or [(0, float("nan"))]
        axes.plot(*zip(*known, strict=True), label=label, **style)
        label = "_"  # one legend entry for all stages


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over `window` values on either side, without nan."""
    sums = list(accumulate((or_zero(value) for value in values), initial=0.0))
    counts = list(accumulate((value == value for value in values), initial=0))
    result = []
    for index in range(len(values)):
        first, last = max(0, index - window), min(len(values), index + window + 1)
        count = counts[last] - counts[first]
        result.append((sums[last] - sums[first]) / count if count else float("nan"))
    return result


def _draw_step_time(axes: "Axes", measured: Measured) -> None:
    """Stack the parts of a step, including the time that no part explains."""
    axes.set_title("Time of a step")
    axes.set_ylabel("ms")
    whole = [1000 * value for value in measured.column("step_seconds")]
    top = 1.45 * _quantile(whole, 0.95)  # a first step compiles for seconds and would flatten the others
    known = [part for part in _PARTS if any(value == value for value in measured.column(part[0]))]
    parts = [[1000 * or_zero(value) for value in measured.column(name)] for name, _, _ in known]
    rest = [max(0.0, all_ - sum(some)) for all_, *some in zip(whole, *parts, strict=True)]
    usual = [index for index, value in enumerate(whole) if value <= top]
    labels, colors = [label for _, label, _ in known], [color for _, _, color in known]
    axes.stackplot(
        _binned([measured.steps[index] for index in usual]),
        *(_binned([part[index] for index in usual]) for part in (*parts, rest)),
        labels=[*labels, "other"],
        colors=[*colors, _OTHER],
        linewidth=0,
    )
    axes.set_ylim(0, top)
    axes.legend(loc="upper right", ncols=4, fontsize=9)
    _note_outliers(axes, whole, top)


def _draw_curvature(axes: "Axes", updates: Sequence[Updates]) -> None:
    """Draw what each update did with the layers, which holds until the next one, and its damping."""
    axes.set_title("Curvature: what updates did with the layers")
    axes.set_ylabel("layers")
    damping = _second_scale(axes, "damping")
    for index, stage in enumerate(updates):
        _draw_updates(axes, damping, stage, mark="_" if index else "")  # one legend entry for all stages
    room = 1.3  # for the legend
    axes.set_ylim(0, room * max(sum(counts[0] for counts in stage.layers.values()) for stage in updates))
    damping.set_ylim(0, room * (max(max(stage.damping) for stage in updates) or 1))
    _legend(axes, damping)
    count = sum(len(stage.steps) for stage in updates)
    _note(axes, f"{readable.plural(count, 'update')} took {cost.describe(updates)}")


def _draw_updates(layers: "Axes", damping: "Axes", stage: Updates, mark: str) -> None:
    steps = [*stage.steps[:: _bin_size(stage.steps)], stage.last_step]
    layers.stackplot(
        steps,
        *(_lasting(_binned(stage.layers[name])) for name in _DECISIONS),
        labels=[mark + name for name in _DECISIONS],
        colors=list(_DECISIONS.values()),
        step="post",
        linewidth=0,
    )
    damping.plot(steps, _lasting(_binned(stage.damping)), label=f"{mark}damping", color=_DAMPING, linewidth=1.8)


def _lasting(values: Sequence[float]) -> list[float]:
    """Repeat the last value at the end of the stage."""
    return [*values, values[-1]]


def _draw_sums(axes: "Axes", measured: Measured, sums: Sequence[Sums]) -> None:
    """Draw the gain of each sum, and the cosine of its summands, which explains it."""
    axes.set_title("Adasum: gain over the mean")
    axes.set_ylabel("gain")
    cosine = _second_scale(axes, "cosine")
    gains = _finite(measured.column("adasum_gain"))
    lines = (
        (axes, gains, "gain", _TRAIN),
        (cosine, _finite(measured.column("adasum_cosine")), "cosine of two summands", _COSINE),
        (cosine, _finite(measured.column("adasum_cosine_min")), "least of a tensor", _LEAST_COSINE),
    )
    for scale, values, label, color in lines:
        scale.plot(measured.steps, values, color=color, alpha=0.25, linewidth=0.8)
        _plot_by_stage(scale, measured, values, f"{label}; moving mean", smooth=True, color=color)
    # A pair with a mean near 0 has an arbitrary gain, which would flatten the others.
    axes.set_ylim(0, 1.4 * max(1.0, _quantile(gains, 0.99)))
    cosine.set_ylim(-1.05, 1.9)  # with room for the legend, as on the other axis
    cosine.set_yticks([-1, -0.5, 0, 0.5, 1])
    _legend(axes, cosine)
    count = sum(stage.steps for stage in sums)
    _note(axes, f"{readable.plural(count, 'sum')} took {cost.describe(sums)}")


def _draw_descent(axes: "Axes", measured: Measured, descents: Sequence[Descent]) -> None:
    """Draw the step lengths in the subspace, 0 for rejected steps, and the share of the gradient in it."""
    axes.set_title("Subspace: steps and share of the gradient")
    axes.set_ylabel("step length")
    share = _second_scale(axes, "% of the squared gradient")
    lengths = measured.column("pca_step_length")
    shares = [100 * value for value in measured.column("pca_gradient_share")]
    axes.plot(measured.steps, lengths, color=_TRAIN, linestyle="", marker=".", markersize=4, alpha=0.5)
    _plot_by_stage(axes, measured, lengths, "step length; moving mean", smooth=True)
    share.plot(measured.steps, shares, color=_GRADIENT_SHARE, alpha=0.25, linewidth=0.8)
    _plot_by_stage(share, measured, shares, "gradient share; moving mean", smooth=True, color=_GRADIENT_SHARE)
    axes.set_ylim(-0.05, 1.3)  # room for the legend and for the dots at 0; the longest step is 1
    share.set_ylim(-5, 130)
    share.set_yticks([0, 25, 50, 75, 100])
    _legend(axes, share)
    count = sum(stage.steps for stage in descents)
    _note(axes, f"{readable.plural(count, 'step')} in the subspace took {cost.describe(descents)}")


def _draw_ranks(axes: "Axes", measured: Measured) -> None:
    """Draw the gang's size over the steps, which the run's figures do not depend on."""
    axes.set_title("Number of ranks")
    axes.set_ylabel("ranks")
    counts = measured.column("ranks")
    axes.step(measured.steps, counts, where="mid", color=_TRAIN, linewidth=1.8)
    axes.set_ylim(0, 1.3 * max(or_zero(count) for count in counts))
    axes.set_yticks(sorted({0.0, *(count for count in counts if count == count)}))


def changed_ranks(measured: Measured) -> bool:
    """True if steps were made by gangs of different sizes."""
    return len({count for count in measured.column("ranks") if count == count}) > 1


def _finite(values: Sequence[float]) -> list[float]:
    return [value if math.isfinite(value) else float("nan") for value in values]


def _second_scale(axes: "Axes", label: str) -> "Axes":
    scale = axes.twinx()
    scale.set_ylabel(label)
    scale.grid(False)
    scale.spines["right"].set_visible(True)
    return scale


def _legend(axes: "Axes", second: "Axes") -> None:
    """One legend for the lines of both axes, above them."""
    first, more = axes.get_legend_handles_labels(), second.get_legend_handles_labels()
    second.legend(first[0] + more[0], first[1] + more[1], loc="upper right", ncols=5, fontsize=9)


def _note_outliers(axes: "Axes", whole: Sequence[float], top: float) -> None:
    beyond = [value for value in whole if value > top]
    if beyond:
        _note(axes, f"not shown: {len(beyond)} of {len(whole)} steps, up to {max(beyond) / 1000:.1f} s")


def _note(axes: "Axes", text: str) -> None:
    axes.set_title(text, loc="right", fontsize=8, color=_MARK, fontweight="normal")


def _binned(values: Sequence[float]) -> list[float]:
    """Average neighbours, so that a long run is not a block of noise."""
    size = _bin_size(values)
    bins = [values[first : first + size] for first in range(0, len(values), size)]
    return [sum(some) / len(some) for some in bins]


def _bin_size(values: Sequence[float]) -> int:
    return max(1, len(values) // 200)


def _mark_attempts(axes: "Axes", measured: Measured, labelled: bool) -> None:
    """A line where another attempt or stage takes over; labels of close lines go below each other."""
    row, last = 0, -len(measured.steps)
    for step, text, went_back in _takeovers(measured):
        axes.axvline(step - 0.5, color=_BACK if went_back else _MARK, linestyle="--", linewidth=1 + went_back)
        row = row + 1 if step - last < 0.12 * len(measured.steps) else 0
        last = step
        if labelled:
            _label_line(axes, step, row, text)


def _takeovers(measured: Measured) -> Iterator[tuple[int, str, bool]]:
    """(step, label, whether it went back because it had diverged)."""
    before: tuple[str, int] | None = None
    faults, sizes = measured.column("rolled_back_from"), measured.column("ranks")
    size = math.nan
    steps = zip(measured.steps, measured.stages, measured.attempts, faults, sizes, strict=True)
    for step, stage, attempt, fault, ranks in steps:
        went_back = fault == fault
        if went_back or (before is not None and (stage, attempt) != before):
            begun = before is None or stage == before[0]
            label = f"attempt {attempt}" if begun else f"stage {stage}"
            if ranks != size and ranks == ranks and size == size:
                label = f"{label}, {readable.plural(int(ranks), 'rank')}"
            yield step, f"{label}, back from step {fault:.0f}" if went_back else label, went_back
        before, size = (stage, attempt), ranks


def _label_line(axes: "Axes", step: int, row: int, text: str) -> None:
    axes.annotate(
        text,
        (step, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(3, -2 - 11 * (row % 12)),
        textcoords="offset points",
        va="top",
        color=_MARK,
        fontsize=8,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    finite = sorted(value for value in values if value == value)
    return finite[min(len(finite) - 1, int(share * len(finite)))] if finite else 1.0
