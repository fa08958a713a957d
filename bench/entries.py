"""Benchmark results as a table for people and as JSON for programs."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a benchmark.

    `value` in `unit` is ours (median of `n`); `ratio` is ours / baseline, or baseline time / ours where the name says
    speedup; `spread` is the smallest and largest ratio among the pairs measured side by side.
    """

    name: str
    value: float
    unit: str
    baseline: str
    ratio: float
    spread: tuple[float, float]
    n: int


def speedup(name: str, ours: Sequence[float], theirs: Sequence[float], baseline: str) -> Entry:
    """An entry from interleaved pairs of times in seconds: baseline time / ours."""
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    return _entry(name, ours, ratios, "s", baseline)


def ratio(name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, baseline: str) -> Entry:
    """An entry from interleaved pairs of figures: ours / baseline."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    return _entry(name, ours, ratios, unit, baseline)


def share(name: str, shares: Sequence[float], whole: str) -> Entry:
    """An entry that is itself a share of something."""
    return _entry(name, shares, shares, "share", whole)


def figure(name: str, values: Sequence[float], unit: str, what: str) -> Entry:
    """An entry without a baseline: its ratio is the value itself."""
    return _entry(name, values, values, unit, what)


def _entry(name: str, ours: Sequence[float], ratios: Sequence[float], unit: str, baseline: str) -> Entry:
    return Entry(
        name=name,
        value=statistics.median(ours),
        unit=unit,
        baseline=baseline,
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        n=len(ratios),
    )


def show(entries: Iterable[Entry]) -> None:
    """Print the entries as a table."""
    table = Table("name", "ours", "unit", "baseline", "ratio", "spread", "n", title="each ratio measured side by side")
    for entry in entries:
        low, high = entry.spread
        figures = (f"{entry.ratio:.4g}", f"{low:.4g} to {high:.4g}", str(entry.n))
        table.add_row(entry.name, f"{entry.value:.4g}", entry.unit, entry.baseline, *figures)
    Console(width=140).print(table)


def read(path: Path) -> list[Entry]:
    """The entries of a JSON file; none if it does not exist."""
    return msgspec.json.decode(path.read_bytes(), type=list[Entry]) if path.exists() else []


def merge(entries: Iterable[Entry], path: Path) -> list[Entry]:
    """Merge the entries into the JSON file, replacing those of the same name; returns all of them."""
    merged = {entry.name: entry for entry in [*read(path), *entries]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(merged.values()))) + b"\n")
    return list(merged.values())
