"""Prints compared runs: a table with a column per run, then the settings that differ."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resnetboost_operator import readable
from resnetboost_operator.runs import comparison
from resnetboost_operator.runs.comparison import NOTHING, Reached, Run

SHOWN_SETTINGS = 30
_LONGEST = 40  # of a setting's value


def show(screen: Console, runs: Sequence[Run], targets: Sequence[float]) -> None:
    """Print the table and the settings."""
    table = _table(runs, "")
    table.add_row("algorithm", *(", ".join(run.algorithms) for run in runs))
    table.add_row("last top-1", *(_share(run.last) for run in runs))
    table.add_row("best top-1", *(_share(run.best) for run in runs))
    table.add_row("epochs", *(readable.quantity(run.epochs[-1]) for run in runs))
    table.add_row("ms a step, median", *(_quantity(1000 * run.step_seconds) for run in runs))
    for target in targets:
        reached = [run.reached(target) for run in runs]
        cells = [NOTHING if one is None else readable.quantity(one.epochs) for one in reached]
        table.add_row(f"epochs to {readable.share(target)}", *cells)
        cells = [NOTHING if one is None else _quantity(one.seconds) for one in reached]
        table.add_row(f"seconds to {readable.share(target)}", *cells)
    screen.print(table)
    _settings(screen, runs)


def _settings(screen: Console, runs: Sequence[Run]) -> None:
    rows = comparison.differing(runs)
    if not rows:
        return
    table = _table(runs, "settings that differ")
    for field, values in rows[:SHOWN_SETTINGS]:
        table.add_row(readable.printable(field), *(readable.cut(readable.printable(text), _LONGEST) for text in values))
    screen.print(Text())
    screen.print(table)
    if len(rows) > SHOWN_SETTINGS:
        screen.print(f"{len(rows) - SHOWN_SETTINGS} more; -o json has all", style="dim")


def _table(runs: Sequence[Run], first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for run in runs:
        table.add_column(Text(readable.printable(run.name)), justify="right", overflow="fold")
    return table


def _share(value: float | None) -> str:
    return NOTHING if value is None else readable.share(value)


def _quantity(value: float) -> str:
    return readable.quantity(value) if value == value else NOTHING


def _reached(found: Reached | None) -> dict[str, float | None] | None:
    return None if found is None else {"epochs": found.epochs, "seconds": _known(found.seconds)}


def _known(value: float) -> float | None:
    return value if value == value else None


def summary(runs: Sequence[Run], targets: Sequence[float]) -> dict[str, Any]:
    """The same as one object, without the curves."""
    return {
        "runs": [
            {
                "name": run.name,
                "algorithms": run.algorithms,
                "lastTop1": run.last,
                "bestTop1": run.best,
                "epochs": run.epochs[-1],
                "stepSeconds": _known(run.step_seconds),
                "reached": {f"{target:g}": _reached(run.reached(target)) for target in targets},
            }
            for run in runs
        ],
        "settings": dict(comparison.differing(runs)),
    }
