"""Uploads checkpoints, best ones and snapshots in a thread of its own, beside the training and beside the saver."""

import collections
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from resnetboost_trainer.checkpoint import snapshots, store
from resnetboost_trainer.checkpoint.remote import Remote
from resnetboost_trainer.checkpoint.saver import Keeping
from resnetboost_trainer.checkpoint.store import Kind, Manifest


class _Upload(NamedTuple):
    """A local checkpoint or snapshot, and what is reported when it is uploaded."""

    path: Path
    kind: Kind
    manifest: Manifest
    bytes: int
    begun: float | None


class Uploader:
    """Queue of uploads, in the order of the calls. A waiting checkpoint gives way to a newer one.

    So no storage is too slow for the training, and snapshots are all there before a checkpoint that follows them.
    After a failed upload nothing more is uploaded. What is not there when the process ends, the next attempt uploads
    that finds it in the local folder.
    """

    def __init__(self, remote: Remote, keeping: Mapping[Kind, Keeping]) -> None:
        self._remote, self._keeping = remote, keeping
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Upload] = collections.deque()
        self._busy = False
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="upload", daemon=True).start()

    def put(self, path: Path, kind: Kind, ours: Manifest, size: int = 0, begun: float | None = None) -> None:
        """Queue an upload. Never blocks. `begun` is when it was begun to be saved, None if it is not reported."""
        with self._changed:
            if kind == "step":
                self._waiting = collections.deque(other for other in self._waiting if other.kind != "step")
            self._waiting.append(_Upload(path, kind, ours, size, begun))
            self._changed.notify_all()

    def catch_up(self, ours: Manifest) -> None:
        """Queue what the local folder has of this stage and the storage has not. Raises StorageError."""
        for kind in ("origin", "snapshot", "best", "step"):
            usable = self._keeping[kind].usable if kind in self._keeping else store.every
            here = store.candidates(self._remote.root, ours.job_uid, ours.stage, kind=kind, usable=usable)
            there = set(self._remote.candidates(ours.job_uid, ours.stage, kind=kind))
            for path in reversed(here[:1] if kind == "step" else here):
                if path not in there:
                    self.put(path, kind, ours)

    def check(self) -> None:
        """Raise the error of an upload that failed, so that training does not continue without checkpoints."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def wait(self) -> None:
        """Wait until every upload is done. Raises StorageError."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not (self._waiting or self._busy))
        self.check()

    def _run(self) -> None:
        while self._failure is None:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                upload, self._busy = self._waiting.popleft(), True
            failure = self._failure_of(upload)
            with self._changed:
                self._busy, self._failure = False, failure
                self._changed.notify_all()

    def _failure_of(self, upload: _Upload) -> BaseException | None:
        try:
            self._upload(upload)
        except BaseException as error:
            return error
        return None

    def _upload(self, upload: _Upload) -> None:
        if not self._remote.upload(upload.path):
            return
        if upload.kind in self._keeping:
            keeping = self._keeping[upload.kind]
            if upload.begun is not None:
                keeping.saved(upload.manifest, upload.bytes, time.monotonic() - upload.begun)
            if upload.kind != "best":
                self._remote.remove(self._surplus(upload, keeping))
        if "best" in self._keeping:  # after a checkpoint too: the local folder is pruned after the upload is queued
            self._remote.remove(self._former_bests(upload.manifest))

    def _former_bests(self, ours: Manifest) -> list[Path]:
        """List the copies of best checkpoints that the local folder has no more."""
        there = self._remote.candidates(ours.job_uid, ours.stage, ours.attempt + 1, "best")
        return [path for path in there if not path.is_dir()]

    def _surplus(self, upload: _Upload, keeping: Keeping) -> list[Path]:
        """List the copies to delete by the rules of the local folder."""
        ours, kind = upload.manifest, upload.kind
        every = self._remote.candidates(ours.job_uid, ours.stage, ours.attempt + 1, kind)
        if kind == "snapshot":
            return snapshots.surplus(every, keeping.keep, upload.path)
        usable = [path for path in every if keeping.usable(*(store.place_of(path, kind) or (0, 0)))]
        stay = store.kept(usable, keeping.keep, upload.path, keeping.back_steps)
        return [path for path in every if path not in stay]
