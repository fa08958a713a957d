"""Draws the entries of a bench; `python -m bench.picture FILE.json ... FILE.png` draws those of some files.

Every ratio is drawn as a speed, on one axis for all: how many times the baseline's, from the slowest to the fastest of
the pairs. Below the ratios is how the operator scales with the number of pods.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bench.entries import Entry, read
from resnetboost_operator.runs.curves import STYLE

# Okabe and Ito's palette, as in a run's report: ahead of the baseline, level with it, behind it.
_AHEAD, _LEVEL, _BEHIND, _THEIRS = "#0072B2", "#7f7f7f", "#D55E00", "#999999"
_TICKS = (0.1, 0.25, 0.5, 1, 2, 4, 10, 25, 100)
_ROW_INCHES = 0.21


class Row(msgspec.Struct, frozen=True):
    """An entry in the picture. `faster`: its ratio is a speed already, not a time or a size, where less is better."""

    entry: str
    label: str
    faster: bool = False


class Bar(msgspec.Struct, frozen=True):
    """A ratio as a speed: ours / the baseline's, from `low` to `high`."""

    label: str
    speed: float
    low: float
    high: float


_CASES = {
    "resnet20_8": "resnet20 8x8",
    "resnet20_32": "resnet20 32x32",
    "resnet18_64": "resnet18 64x64",
    "resnet50_64": "resnet50 64x64",
    "seresnet50_64": "seresnet50 64x64",
}


def _networks(kind: str, baseline: str) -> list[Row]:
    what = "step" if kind == "step" else "inference"
    return [Row(f"{kind}_time_vs_{baseline}_{case}", f"{what}, {text}") for case, text in _CASES.items()]


PANELS: dict[str, list[Row]] = {
    "Training step and inference / PyTorch in its default setting": [
        *_networks("step", "pytorch"),
        *_networks("inference", "pytorch"),
    ],
    "The same / PyTorch in its best setting": [
        *_networks("step", "best_pytorch"),
        *_networks("inference", "best_pytorch"),
    ],
    "The same / MindCV, and / stock MindSpore": [
        *_networks("step", "mindcv"),
        Row("cpu_step_speedup_vs_stock", "step, resnet20 8x8 / nn.Conv2d", faster=True),
        Row("cpu_step_speedup_vs_stock_32", "step, resnet20 32x32 / nn.Conv2d", faster=True),
    ],
    "Algorithms": [
        Row("thor_step_time_vs_momentum", "THOR's step / Momentum's"),
        Row("thor_step_time_vs_momentum_all_layers", "the same, all layers updated"),
        Row("adasum_time_vs_allreduce_8", "Adasum of 45 MB, 8 ranks / AllReduce"),
        Row("adasum_time_vs_allreduce_8_1mb", "Adasum of 1 MB, 8 ranks / AllReduce"),
        Row("pca_speedup_vs_sklearn", "PCA 60 x 11.7 M / scikit-learn's default", faster=True),
        Row("pca_speedup_vs_sklearn_arpack_fit", "PCA 60 x 11.7 M / arpack", faster=True),
    ],
    "Data": [
        Row("data_vs_torchvision_cpu", "images per CPU second / torchvision", faster=True),
        Row("data_vs_torchvisionio_cpu", "the same / torchvision's tensor transforms", faster=True),
        Row("data_vs_pillow_cpu", "the same / Pillow in threads", faster=True),
    ],
    "Starts and restarts": [
        Row("warm_start_speedup", "compiling and first step / a first start", faster=True),
        Row("warm_start_whole_speedup", "the whole start / a first start", faster=True),
        Row("local_start_seconds", "`resnetboost run`, kept graphs / a first start"),
        Row("restart_in_place_1000", "1000 pods in place / new pods"),
        Row("next_step_in_place_2", "next step of 2 real ranks in place / new pods"),
        Row("next_step_in_place_8", "next step of 8 real ranks in place / new pods"),
    ],
    "Operator": [
        *(
            Row(f"create_{size}_speedup_vs_indexed_job", f"{size} pods created / Indexed Job", faster=True)
            for size in (100, 500, 1000)
        ),
        *(
            Row(f"create_running_{size}_speedup", f"{size} pods running / Indexed Job", faster=True)
            for size in (100, 500, 1000)
        ),
        Row("create_10000_vs_1000", "rate of creation, 10,000 pods / 1000", faster=True),
        Row("create_running_10000_vs_1000", "the same until all run", faster=True),
        Row("restart_1000_vs_start", "restart of 1000 with new pods / their start"),
        Row("restart_one_of_ten_vs_alone", "restart of one gang of ten / alone"),
        Row("first_pod_of_200_jobs_last_vs_median", "200 jobs at once: the last's first pod / the median"),
    ],
}

_RATE = re.compile(r"create_(\d+)_(speedup_vs_indexed_job|vs_1000)")
_MEMORY = re.compile(r"operator_mib_(\d+)")


def bars(rows: Iterable[Row], entries: dict[str, Entry]) -> list[Bar]:
    """The rows that were measured."""
    return [_bar(row, entries[row.entry]) for row in rows if row.entry in entries]


def _bar(row: Row, entry: Entry) -> Bar:
    low, high = entry.spread
    if row.faster:
        return Bar(row.label, entry.ratio, low, high)
    return Bar(row.label, 1 / entry.ratio, 1 / high, 1 / low)


def curve(pattern: re.Pattern[str], entries: Iterable[Entry], unit: str) -> list[tuple[int, Entry]]:
    """Entries of that unit by the number of pods in their names, ascending."""
    found = [(pattern.fullmatch(entry.name), entry) for entry in entries if entry.unit == unit]
    points = [(int(match[1]), entry) for match, entry in found if match is not None]
    return sorted(points, key=lambda point: point[0])


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Write the picture as PNG, with the panels of which anything was measured."""
    named = {entry.name: entry for entry in entries}
    panels = {title: found for title, rows in PANELS.items() if (found := bars(rows, named))}
    rates = curve(_RATE, entries, "pods/s")
    memory = curve(_MEMORY, entries, "MiB")
    heights = [1.6 + len(found) for found in panels.values()]
    curves = 12.0 if rates or memory else 0.1
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 0.6 + _ROW_INCHES * (sum(heights) + curves)), dpi=110, layout="constrained")
        figure.suptitle("Speed / the baseline's, measured side by side", x=0.01, ha="left", fontsize=12)
        above, below = figure.subfigures(2, 1, height_ratios=(max(0.1, sum(heights)), curves), squeeze=False)[:, 0]
        if panels:
            limits = _limits(panels.values())
            every = above.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
            for axes, (title, found) in zip(every, panels.items(), strict=True):
                _draw_bars(axes, title, found, limits)
        if rates or memory:
            left, right = below.subplots(1, 2)
            _draw_rates(left, rates)
            _draw_memory(right, memory)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _limits(panels: Iterable[Sequence[Bar]]) -> tuple[float, float]:
    drawn = [bar for found in panels for bar in found]
    low, high = min([0.5, *(bar.low for bar in drawn)]), max([2.0, *(bar.high for bar in drawn)])
    return low / 1.1, high * 1.1


def _draw_bars(axes: Axes, title: str, found: Sequence[Bar], limits: tuple[float, float]) -> None:
    places = range(len(found), 0, -1)
    for place, bar in zip(places, found, strict=True):
        color = _AHEAD if bar.low > 1 else _BEHIND if bar.high < 1 else _LEVEL
        axes.plot((bar.low, bar.high), (place, place), color=color, alpha=0.35, linewidth=5, solid_capstyle="butt")
        axes.plot(bar.speed, place, "o", color=color, markersize=5)
        text = f"{bar.speed:.3g} ({bar.low:.3g} to {bar.high:.3g})"
        axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_title(title, fontsize=10)
    axes.set_yticks(places, [bar.label for bar in found])
    axes.set_ylim(0.4, len(found) + 0.6)
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    axes.set_xticks([tick for tick in _TICKS if limits[0] <= tick <= limits[1]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=False, axis="y")


def _draw_rates(axes: Axes, rates: Sequence[tuple[int, Entry]]) -> None:
    axes.set_title("Pods created per second", fontsize=10)
    axes.plot([pods for pods, _ in rates], [entry.value for _, entry in rates], "o-", color=_AHEAD, label="ours")
    beside = [(pods, entry.value / entry.ratio) for pods, entry in rates if "indexed" in entry.name]
    theirs = [rate for _, rate in beside]
    axes.plot([pods for pods, _ in beside], theirs, "s--", color=_THEIRS, label="Kubernetes' Indexed Job")
    axes.legend(loc="lower right")
    _pods(axes, [pods for pods, _ in rates])


def _draw_memory(axes: Axes, memory: Sequence[tuple[int, Entry]]) -> None:
    axes.set_title("Peak memory of the operator, MiB", fontsize=10)
    axes.plot([pods for pods, _ in memory], [entry.value for _, entry in memory], "o-", color=_AHEAD)
    _pods(axes, [pods for pods, _ in memory])


def _pods(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("pods")
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])


def main() -> None:
    """Draw the entries of all files but the last, to that one."""
    *sources, target = map(Path, sys.argv[1:])
    draw([entry for source in sources for entry in read(source)], target)
    print(f"written: {target}")


if __name__ == "__main__":
    main()
