"""Saves checkpoints behind the training's back: one writer thread on rank 0; what is saved is the caller's business."""

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from resnetboost_trainer import checkpoint
from resnetboost_trainer.checkpoint import Arrays, Manifest

Saved = Callable[[Manifest, int, float], None]


class Saver:
    """At most one checkpoint is being written; a second one waits for it, so memory stays bounded."""

    def __init__(self, root: Path, keep: int, saved: Saved) -> None:
        """`saved(manifest, bytes, seconds)` is called from the writer's thread once a checkpoint is on disk."""
        self._root, self._keep, self._saved = root, keep, saved
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None

    def save(self, manifest: Manifest, contents: Mapping[str, Arrays]) -> None:
        """Begin to write copies of the state. Raises the OSError the checkpoint before ended with."""
        self.wait()
        self._pending = self._thread.submit(self._write, manifest, contents)

    def check(self) -> None:
        """Raise the OSError of a failed write as soon as it is known, instead of training on for nothing."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when everything is on disk. Raises OSError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, manifest: Manifest, contents: Mapping[str, Arrays]) -> None:
        started = time.monotonic()
        directory = checkpoint.attempt_directory(self._root, manifest.job_uid, manifest.stage, manifest.attempt)
        written, size = checkpoint.write(directory, manifest, contents)
        self._saved(manifest, size, time.monotonic() - started)
        checkpoint.prune(self._root, manifest.job_uid, manifest.stage, manifest.attempt, self._keep, written)
