"""Merges the metrics of a run's attempts into metrics.csv, and reads that file."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from resnetboost_operator.runs.runfolder import RunFolder, write

Row = dict[str, str]


class Measured(msgspec.Struct, frozen=True):
    """The columns of metrics.csv, one value per step, nan if absent; `steps` counts over all stages."""

    steps: Sequence[int]
    stages: Sequence[str]
    attempts: Sequence[int]
    columns: dict[str, Sequence[float]]

    def column(self, name: str) -> Sequence[float]:
        """The values of a column; all nan if the file does not have it."""
        return self.columns.get(name) or [float("nan")] * len(self.steps)


def read(path: Path) -> Measured:
    """Read the merged metrics of a run; empty without a file."""
    return measured(list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else [])


def measured(rows: Sequence[Row]) -> Measured:
    """The columns of merged rows."""
    names = [name for name in _columns(rows) if name not in ("stage", "attempt", "step")]
    return Measured(
        steps=range(1, len(rows) + 1),
        stages=[row["stage"] for row in rows],
        attempts=[int(row["attempt"]) for row in rows],
        columns={name: [_number(row.get(name)) for row in rows] for name in names},
    )


def or_zero(value: float) -> float:
    """An integer column, with 0 for absent values."""
    return value if value == value else 0.0


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def merge(folder: RunFolder) -> None:
    """Write metrics.csv."""
    if found := rows(folder):
        write(folder.metrics_file, _csv(_columns(found), found))


def current(folder: RunFolder) -> Measured:
    """The metrics of all attempts, also while they train; without their files those of metrics.csv. Writes nothing."""
    found = rows(folder)
    return measured(found) if found else read(folder.metrics_file)


def rows(folder: RunFolder) -> list[Row]:
    """The rows of metrics.csv: stages in order, and each step once, from the last attempt that made it."""
    job = folder.read_job()
    root = folder.checkpoints / job["metadata"]["uid"]
    stages = [stage["name"] for stage in job["spec"]["stages"]]
    return [row for stage in stages for row in merged(_attempts(root / stage, stage))]


def _columns(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def merged(attempts: Iterable[Sequence[Row]]) -> list[Row]:
    """Rows of one stage over its attempts: a later one replaces the same and all later steps before it.

    A killed attempt may have trained beyond its last checkpoint; the next one repeated those steps. One that resumed
    after the stage's last step has made none: its row is an evaluation, and adds to the row of that step.
    """
    result: list[Row] = []
    for rows in attempts:
        if rows:
            first = int(rows[0]["step"])
            made = [] if _is_step(rows[0]) else [row for row in result if int(row["step"]) == first]
            begin = _filled(made[0], rows[0]) if made else rows[0]
            result = [row for row in result if int(row["step"]) < first] + [begin, *rows[1:]]
    return result


def _is_step(row: Row) -> bool:
    """Whether a step was made, not only evaluated."""
    return bool(row.get("step_seconds") or row.get("loss"))


def _filled(row: Row, by: Row) -> Row:
    """A row with another one's values where it has none."""
    return {name: row.get(name) or by.get(name, "") for name in row | by}


def _attempts(stage: Path, name: str) -> Iterable[list[Row]]:
    found = [
        (int(path.parent.name.removeprefix("attempt-")), path) for path in stage.glob("attempt-[0-9]*/metrics.csv")
    ]
    return [_read(path, {"stage": name, "attempt": str(attempt)}) for attempt, path in sorted(found)]


def _read(path: Path, labels: Row) -> list[Row]:
    """The rows of one file, without an incomplete last line."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        return [
            labels | dict(zip(header, line, strict=True))
            for line in reader
            if len(line) == len(header) and line[0].isdecimal()
        ]


def _csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
