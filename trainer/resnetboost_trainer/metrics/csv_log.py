"""metrics.csv: one row a step, written by the leader beside its checkpoints, for reports."""

from collections.abc import Sequence
from pathlib import Path

STEP_COLUMNS = (
    "step",
    "epoch",
    "time",
    "loss",
    "accuracy",
    "learning_rate",
    "step_seconds",
    "data_wait_seconds",
    "compute_seconds",
    "collective_seconds",
    "images_per_second",
    "loss_scale",
    "left_out",
    "noise_trace",
    "noise_signal",
    "noise_scale",
    "ranks",
    "skipped_batches",
    "rolled_back_from",
    "diverged",
)
EVALUATION_COLUMNS = ("top1", "top5", "test_loss", "ema_top1", "ema_top5", "ema_test_loss")


class CsvLog:
    """Appends rows to a file and flushes each, so that a killed rank leaves all of them."""

    def __init__(self, path: Path | None, algorithm_columns: Sequence[str] = ()) -> None:
        """Begin a file; without a path rows are dropped. Raises OSError."""
        self._file = None
        self._columns = (*STEP_COLUMNS, *algorithm_columns, *EVALUATION_COLUMNS)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", buffering=1)
            self._file.write(",".join(self._columns) + "\n")

    def add(self, **values: float | None) -> None:
        """Append a row; a missing value is an empty cell."""
        if self._file is not None:
            self._file.write(",".join(_cell(values.get(column)) for column in self._columns) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _cell(value: float | None) -> str:
    """Format a value with seven digits, the precision of float32; larger times and counts in full."""
    if value is None:
        return ""
    return f"{value:.7g}" if abs(value) < 1e6 else f"{value}"
