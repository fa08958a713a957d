"""The picture of a bench: every ratio becomes a speed, and pods are found by their number."""

import re
from pathlib import Path

from bench import picture
from bench.entries import Entry, merge, read


def entry(name: str, ratio: float, spread: tuple[float, float], value: float = 1.0, unit: str = "s") -> Entry:
    return Entry(name=name, value=value, unit=unit, baseline="", ratio=ratio, spread=spread, n=3)


def test_a_time_below_the_baselines_and_a_speed_above_it_are_both_drawn_as_faster() -> None:
    times, speeds = picture.Row("times", "a"), picture.Row("speeds", "b", faster=True)
    measured = {"times": entry("times", 0.5, (0.4, 0.8)), "speeds": entry("speeds", 2.0, (1.25, 2.5))}
    first, second = picture.bars([times, speeds, picture.Row("missing", "c")], measured)
    assert (first.speed, first.low, first.high) == (second.speed, second.low, second.high) == (2.0, 1.25, 2.5)


def test_a_curve_has_the_entries_of_its_unit_in_the_order_of_the_pods() -> None:
    sizes = [entry(f"pods_{pods}", 1, (1, 1), value=pods / 2, unit="MiB") for pods in (10000, 100, 1000)]
    found = picture.curve(re.compile(r"pods_(\d+)"), [*sizes, entry("pods_500", 1, (1, 1))], "MiB")
    assert [(pods, point.value) for pods, point in found] == [(100, 50), (1000, 500), (10000, 5000)]


def test_every_panel_is_drawn_from_the_json(tmp_path: Path) -> None:
    rows = [row for rows in picture.PANELS.values() for row in rows]
    entries = [entry(row.entry, 1.5, (1.2, 2.0), 300.0, "pods/s" if "create" in row.entry else "s") for row in rows]
    merge([*entries, entry("operator_mib_1000", 80, (80, 80), 80, "MiB")], tmp_path / "bench.json")
    picture.draw(read(tmp_path / "bench.json"), tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert len({row.entry for row in rows}) == len(rows)
