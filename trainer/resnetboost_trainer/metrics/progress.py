"""A rank's progress: one immutable snapshot, replaced by the training loop, read by the HTTP server."""

import collections
import threading
import time

import msgspec

from resnetboost_api.status import BestCheckpoint, PreflightResult
from resnetboost_trainer.metrics.stragglers import Straggler


class Progress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The reply to GET /progress; its fields are the contract with `.status.progress`. Accuracies are 0..1."""

    state: str
    stage: str
    attempt: int
    step: int = 0
    total_steps: int = 0
    epoch: float = 0.0
    total_epochs: int = 0
    percent: int = 0
    loss: float | None = None
    accuracy: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    images_per_second: float | None = None
    eta_seconds: int | None = None
    checkpoint_step: int | None = None
    resumed_step: int | None = None
    top1: float | None = None
    top5: float | None = None
    test_loss: float | None = None
    best: BestCheckpoint | None = None
    slowest_rank: int | None = None
    slowest_compute_seconds: float | None = None
    stragglers: tuple[Straggler, ...] = ()
    preflight_seconds: float | None = None
    preflight: PreflightResult | None = None
    skipped_images: int = 0
    heartbeat: int = 0


# A rank that moved within this time counts as training. Kubelet asks every 10 s and counts the failures itself.
FRESH_SECONDS = 30.0


class ProgressState:
    """Holds the newest Progress; the training thread and the checkpoint writer change it, the server reads it.

    `skipped` has the hashes of skipped images from `Corrupt.marks`.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._moved_at = float("-inf")
        self.skipped: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def update(self, **changes: object) -> None:
        """Replace some fields."""
        with self._lock:
            self._progress = msgspec.structs.replace(self._progress, **changes)

    def beat(self) -> None:
        """Record that something moved: a step, an evaluation batch."""
        with self._lock:
            self._progress = msgspec.structs.replace(self._progress, heartbeat=self._progress.heartbeat + 1)
            self._moved_at = time.monotonic()

    def moves(self) -> bool:
        """True if something moved within `FRESH_SECONDS`."""
        return time.monotonic() - self._moved_at < FRESH_SECONDS

    def read(self) -> Progress:
        """The newest snapshot."""
        return self._progress


class Window:
    """Running means over the most recent steps."""

    def __init__(self, length: int) -> None:
        self._rows: collections.deque[tuple[float, ...]] = collections.deque(maxlen=length)

    def add(self, *values: float) -> None:
        """Add one step's values."""
        self._rows.append(values)

    def means(self) -> tuple[float, ...]:
        """Mean of each value over the window, which must not be empty."""
        return tuple(sum(column) / len(self._rows) for column in zip(*self._rows, strict=True))
