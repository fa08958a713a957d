"""The trials of a sweep as a table: state, value and parameters of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from resnetboost_api import names
from resnetboost_api.evaluations import Metric
from resnetboost_api.status import StageStatus, Status
from resnetboost_operator import readable

STYLES = {"Complete": "green", "Failed": "bold red", "Pruned": "yellow", "Running": "cyan"}
LABELS = {"top1": "TOP-1", "top5": "TOP-5", "loss": "TEST LOSS"}
SWEEPS, LIST = Path("sweeps"), "trials.json"  # where folders of sweeps are by default, and their list of trials
NOTHING = "-"
_LONGEST_NOTE = 60


class TrialRow(msgspec.Struct, frozen=True):
    """One trial: number, state, value of the metric, and the values of the parameters by path."""

    number: int
    state: str
    value: float | None
    parameters: dict[str, Any]
    note: str = ""


class Listed(msgspec.Struct, frozen=True):
    """The trials of a sweep as its folder lists them."""

    name: str
    metric: Metric
    trials: tuple[TrialRow, ...]
    best: int | None = None


class Tried(msgspec.Struct, frozen=True):
    """What a job says about its trial, in an annotation."""

    sweep: str
    """Uid of the sweep."""
    metric: Metric
    parameters: dict[str, bool | int | float | str]


def annotation(tried: Tried) -> str:
    """The annotation's text."""
    return msgspec.json.encode(tried).decode()


def tried(manifest: Mapping[str, Any]) -> Tried | None:
    """What the job says about its trial; None if it is of no sweep, or the text is not ours."""
    text = (manifest["metadata"].get("annotations") or {}).get(names.ANNOTATION_TRIAL)
    try:
        return msgspec.json.decode(text, type=Tried) if isinstance(text, str) else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def read_list(file: Path) -> Listed | None:
    """The list in a sweep's folder; None if there is none, or it is damaged."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Listed)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def of_job(manifest: Mapping[str, Any], status: Status) -> TrialRow | None:
    """The row of a job of a cluster; None if it is no trial."""
    found, metadata = tried(manifest), manifest["metadata"]
    number = str((metadata.get("labels") or {}).get(names.LABEL_TRIAL, ""))
    if found is None or not number.isdecimal() or len(number) > 9:
        return None
    pruned = (metadata.get("annotations") or {}).get(names.ANNOTATION_PRUNED)
    state = "Pruned" if isinstance(pruned, str) and status.phase != "Complete" else status.phase
    value = figure(status, found.metric)
    return TrialRow(int(number), state, value, dict(found.parameters), readable.printable(pruned or ""))


def figure(status: Status, metric: Metric) -> float | None:
    """The metric at the last evaluation that the status has; None before the first of the last stage."""
    last = status.stages[-1] if status.stages else StageStatus("")
    own = {"top1": last.top1, "top5": last.top5, "loss": last.test_loss}[metric]
    progress = status.progress
    if own is None and progress is not None and progress.stage == last.name:
        return {"top1": progress.top1, "top5": progress.top5, "loss": progress.test_loss}[metric]
    return own


def shown_figure(value: float | None, metric: Metric) -> str:
    """A value of the metric for people."""
    if value is None:
        return NOTHING
    return readable.quantity(value) if metric == "loss" else readable.share(value)


def table(rows: Sequence[TrialRow], metric: Metric, best: int | None = None) -> Table:
    """The table, the best value first, then what has none; `best` is marked."""
    paths = list(dict.fromkeys(path for row in rows for path in row.parameters))
    found = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    found.add_column("TRIAL", justify="right")
    found.add_column("STATE")
    found.add_column(LABELS[metric], justify="right")
    for path in paths:
        found.add_column(Text(readable.printable(short(path, paths))), justify="right", overflow="fold")
    found.add_column("", overflow="fold")
    for row in in_order(rows, metric):
        cells = [Text(shown_value(row.parameters[path]) if path in row.parameters else NOTHING) for path in paths]
        note = "best" if row.number == best else readable.cut(readable.printable(row.note), _LONGEST_NOTE)
        state = Text(readable.printable(row.state), style=STYLES.get(row.state, ""))
        found.add_row(str(row.number), state, shown_figure(row.value, metric), *cells, Text(note))
    return found


def in_order(rows: Sequence[TrialRow], metric: Metric) -> list[TrialRow]:
    """Complete trials by value, the best first; then the others by number."""
    sign = 1 if metric == "loss" else -1
    done = [row for row in rows if row.state == "Complete" and row.value is not None]
    rest = [row for row in rows if row not in done]
    return [
        *sorted(done, key=lambda row: (sign * (row.value or 0.0), row.number)),
        *sorted(rest, key=lambda row: row.number),
    ]


def short(path: str, paths: Sequence[str]) -> str:
    """The shortest end of a path that no other path has: learningRate.peak is `peak`."""
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        end = ".".join(parts[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in paths) == 1:
            return end
    return path


def shown_value(value: Any) -> str:
    """A parameter's value for people: numbers with four significant digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) else readable.printable(readable.cut(str(value), 40))


def words(parameters: Mapping[str, Any]) -> str:
    """Parameters in a line, such as peak=0.1, epochs=3."""
    return ", ".join(f"{short(path, list(parameters))}={shown_value(value)}" for path, value in parameters.items())
