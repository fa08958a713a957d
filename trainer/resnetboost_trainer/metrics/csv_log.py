"""metrics.csv: one row a step, written by rank 0 beside its checkpoints, for reports; it interprets nothing."""

from pathlib import Path

COLUMNS = (
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
    "damping",
    "thor_update_seconds",
    "layers_updated",
    "layers_kept",
    "layers_stopped",
    "layers_failed",
    "adasum_cosine",
    "adasum_cosine_min",
    "adasum_gain",
    "adasum_seconds",
    "pca_explained_variance",
    "pca_step_length",
    "pca_evaluations",
    "pca_gradient_share",
    "pca_seconds",
    "top1",
    "top5",
    "test_loss",
    "ema_top1",
    "ema_top5",
    "ema_test_loss",
)


class History:
    """Appends rows to a file that is flushed by the line, so that a killed rank leaves what it had told."""

    def __init__(self, path: Path | None) -> None:
        """Begin a file; without a path nothing is kept. Raises OSError."""
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", buffering=1)
            self._file.write(",".join(COLUMNS) + "\n")

    def add(self, **values: float | None) -> None:
        """One row; a missing value is an empty cell."""
        if self._file is not None:
            self._file.write(",".join(_cell(values.get(column)) for column in COLUMNS) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _cell(value: float | None) -> str:
    """Seven digits are what float32 holds; times and counts are larger and stay whole."""
    if value is None:
        return ""
    return f"{value:.7g}" if abs(value) < 1e6 else f"{value}"
