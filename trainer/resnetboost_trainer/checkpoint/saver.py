"""Saves checkpoints, best ones and snapshots asynchronously, in one thread on rank 0.

They are written in the order of the calls, and none after a failed one: if a checkpoint exists, so do all snapshots and
best checkpoints before it. With an uploader, a checkpoint counts as saved once it is uploaded.
"""

import collections
import concurrent.futures
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resnetboost_trainer.checkpoint import best, snapshots, store
from resnetboost_trainer.checkpoint.store import Arrays, Kind, Manifest, Usable, every

if TYPE_CHECKING:
    from resnetboost_trainer.checkpoint.uploader import Uploader

Saved = Callable[[Manifest, int, float], None]
Pending = concurrent.futures.Future[None]

# Enough for a snapshot and the checkpoint of the same step, and a best one if they are kept; a further save blocks
# training until one is written.
MAX_PENDING = 2


class Keeping(msgspec.Struct, frozen=True):
    """Retention of one kind: `keep` the newest; the writer thread calls `saved(manifest, bytes, seconds)` for each.

    `back_steps` and `usable` are for checkpoints, as in `store.prune`.
    """

    keep: int
    saved: Saved
    back_steps: int | None = None
    usable: Usable = every


class Saver:
    """Queue of pending writes, at most one of each kind (or two) so that memory stays bounded; a further one blocks."""

    def __init__(self, root: Path, keeping: Mapping[Kind, Keeping], uploader: "Uploader | None" = None) -> None:
        self._root, self._keeping, self._uploader = root, keeping, uploader
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: collections.deque[Pending] = collections.deque()
        self._failed = False

    def save(self, manifest: Manifest, contents: Mapping[str, Arrays], kind: Kind = "step") -> None:
        """Queue a write of `contents`, which must be copies. Raises the OSError of an earlier write that failed."""
        self._settle(max(MAX_PENDING, len(self._keeping)) - 1)
        self._pending.append(self._thread.submit(self._write, manifest, contents, kind))

    def check(self) -> None:
        """Raise the OSError of a finished write that failed, so that training does not continue without checkpoints."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        if self._uploader is not None:
            self._uploader.check()

    def wait(self) -> None:
        """Wait until every write is on disk, and uploaded. Raises OSError, StorageError."""
        self._settle(0)
        if self._uploader is not None:
            self._uploader.wait()

    def catch_up(self, ours: Manifest) -> None:
        """Upload what is on disk of this stage and not uploaded yet. Raises StorageError."""
        if self._uploader is not None:
            self._uploader.catch_up(ours)

    def _settle(self, left: int) -> None:
        self.check()
        while len(self._pending) > left:
            self._pending.popleft().result()

    def _write(self, manifest: Manifest, contents: Mapping[str, Arrays], kind: Kind) -> None:
        if self._failed:
            return
        try:
            self._write_and_prune(manifest, contents, kind)
        except BaseException:
            self._failed = True
            raise

    def _write_and_prune(self, manifest: Manifest, contents: Mapping[str, Arrays], kind: Kind) -> None:
        started = time.monotonic()
        keeping, of = self._keeping[kind], (manifest.job_uid, manifest.stage, manifest.attempt)
        written, size = store.write(store.attempt_directory(self._root, *of), manifest, contents, kind)
        if self._uploader is None:
            keeping.saved(manifest, size, time.monotonic() - started)
        else:
            self._uploader.put(written, kind, manifest, size, started)
        if kind == "snapshot":
            snapshots.prune(self._root, *of, keeping.keep, written)
            return
        if kind == "step":
            store.prune(self._root, *of, keeping.keep, written, keeping.back_steps, keeping.usable)
        if "best" in self._keeping:  # after a checkpoint too: a killed rank may have left one too many
            best.prune(self._root, *of, self._keeping["best"].keep, self._keeping["best"].usable)
