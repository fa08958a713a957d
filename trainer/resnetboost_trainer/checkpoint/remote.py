"""Copies of a job's checkpoints in object storage (`checkpoint.url`), laid out as in the local folder.

Of a checkpoint its files are written first and its manifest last: one without it is not there yet. What is read back is
verified by the manifest's hashes, so that a torn copy means the checkpoint before it.
"""

import contextlib
import itertools
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from resnetboost_trainer.checkpoint import lineage, snapshots, store
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.checkpoint.lookup import MAX_FOLDERS, MAX_MANIFESTS, Job
from resnetboost_trainer.checkpoint.store import MANIFEST, Damaged, Kind, Manifest, Usable, every
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.storage import address
from resnetboost_trainer.storage.bucket import Bucket, Changed, Missing, TooLarge

FIELD = "checkpoint.url"
# Requests at the same time, where jobs are searched by name.
_THREADS = 8
# A job's folder, a stage, an attempt, a checkpoint and a file.
_PARTS = 5

log = logging.getLogger(__name__)


class Remote:
    """Checkpoints below an address; each has the path that its copy in the local folder `root` has or would have."""

    def __init__(self, bucket: Bucket, root: Path) -> None:
        self.bucket, self.root = bucket, root

    def candidates(
        self,
        job_uid: str,
        stage: str,
        before_attempt: float = math.inf,
        kind: Kind = "step",
        usable: Usable = every,
    ) -> list[Path]:
        """List a stage's checkpoints like `store.candidates`. Raises StorageError."""
        found = []
        for item in self.bucket.objects(f"{job_uid}/{stage}"):
            path = self.root / item.key
            if path.name != MANIFEST or item.key.count("/") != _PARTS - 1:
                continue
            place = store.place_of(path.parent, kind)
            if place is not None and place[1] < before_attempt and usable(*place):
                found.append((*place, path.parent))
        return [path for _, _, path in sorted(found, reverse=True)]

    def upload(self, path: Path) -> bool:
        """Copy a local checkpoint; False if it was pruned meanwhile, as a newer one is there. Raises StorageError.

        Its files are opened first: one that is pruned from now on can still be read.
        """
        with contextlib.ExitStack() as files:
            try:
                last = files.enter_context((path / MANIFEST).open("rb"))
                names = store.decoded(last.read(store.MANIFEST_LIMIT_BYTES)).files
                opened = {name: files.enter_context((path / name).open("rb")) for name in names}
            except FileNotFoundError:
                return False
            for name, file in opened.items():
                self.bucket.put(self._key(path, name), file)
            self.bucket.put(self._key(path, MANIFEST), last)
        with contextlib.suppress(FileNotFoundError), (path.parent / lineage.METRICS).open("rb") as file:
            self.bucket.put(self._key(path.parent, lineage.METRICS), file)
        return True

    def remove(self, paths: Sequence[Path]) -> None:
        """Delete checkpoints, their manifests first: a half-deleted one must not look like a damaged one."""
        self.bucket.delete([self._key(path, MANIFEST) for path in paths])
        for path in paths:
            self.bucket.delete([item.key for item in self.bucket.objects(self._key(path))])

    def manifest(self, path: Path) -> Manifest:
        """Read a checkpoint's manifest and check that it names this path. Raises Damaged, StorageError."""
        try:
            manifest = store.decoded(self.bucket.read(self._key(path, MANIFEST), store.MANIFEST_LIMIT_BYTES))
        except (Missing, TooLarge) as error:
            raise Damaged(f"{MANIFEST}: {error}") from error
        store.check_place(path, manifest)
        return manifest

    def fetch(self, path: Path) -> None:
        """Copy a checkpoint into the local folder and verify it. Raises Damaged, StorageError, OSError."""
        manifest, partial = self.manifest(path), path.with_name(f".{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            for name, file in manifest.files.items():
                self._download(path, partial, name, file.bytes)
            self._download(path, partial, MANIFEST, store.MANIFEST_LIMIT_BYTES)
            store.verify_files(partial, manifest)
            store.sync(partial)
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
            store.sync(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        log.info("fetched %s", self.bucket.address.below(self._key(path)))

    def _download(self, path: Path, to: Path, name: str, at_most: int) -> None:
        if Path(name).name != name:
            raise Damaged(f"{MANIFEST}: {name!r} is not a plain file name")
        try:
            with (to / name).open("wb") as file:
                self.bucket.download(self.bucket.look_up(self._key(path, name), at_most), file)
                file.flush()
                os.fsync(file.fileno())
        except (Missing, TooLarge, Changed) as error:
            raise Damaged(f"{name}: {error}") from error

    def bring(self, job_uid: str, stage: str, before_attempt: float = math.inf, usable: Usable = every) -> bool:
        """Make sure that a stage's furthest intact checkpoint is in the local folder; False if there is none."""
        there = self.candidates(job_uid, stage, before_attempt, usable=usable)
        here = store.candidates(self.root, job_uid, stage, before_attempt, usable=usable)
        places = {path: store.place_of(path, "step") or (0, 0) for path in (*there, *here)}
        for path in sorted(places, key=places.__getitem__, reverse=True):
            if (path in here and self._try(store.verify, path)) or (path in there and self._try(self.fetch, path)):
                return True
        return False

    def bring_of(self, job: Job, stage: str, but: str, at_most: float = math.inf) -> str | None:
        """Like `bring`, of the job of that name that saved last; return its uid. Skip the uid `but`."""
        uids = [uid for uid in self.bucket.folders()[:MAX_FOLDERS] if uid != but]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup") as threads:
            read = list(threads.map(lambda uid: self._furthest(uid, stage), uids))
        found = [
            (manifest.written, uid)
            for uid, manifest in zip(uids, read, strict=True)
            if manifest is not None and Job(manifest.job_namespace, manifest.job_name) == job
        ]
        for _, uid in sorted(found, reverse=True):
            if self.bring(uid, stage, usable=lambda step, _: step <= at_most):
                return uid
        return None

    def bring_all(self, job_uid: str, stage: str, kind: Kind) -> None:
        """Copy a stage's snapshots or best checkpoints into the local folder; those that are damaged are left out."""
        paths = self.candidates(job_uid, stage, kind=kind)[: snapshots.MAX_MANIFESTS]
        for path in paths:
            if not path.is_dir():
                self._try(self.fetch, path)

    def _furthest(self, job_uid: str, stage: str) -> Manifest | None:
        for path in itertools.islice(self.candidates(job_uid, stage), MAX_MANIFESTS):
            with contextlib.suppress(Damaged):
                return self.manifest(path)
        return None

    def _try(self, act: Callable[[Path], object], path: Path) -> bool:
        try:
            act(path)
        except Damaged as damage:
            log.warning("checkpoint %s is damaged (%s); trying another", path, damage)
            return False
        return True

    def _key(self, path: Path, name: str = "") -> str:
        return "/".join(part for part in (path.relative_to(self.root).as_posix(), name) if part)


def of(config: Config, root: Path | None) -> Remote | None:
    """Return the copies of the job's checkpoints; None if it has none. For the leader, which has the local ones."""
    url = config.checkpoint.url
    if url is None or root is None:
        return None
    return Remote(Bucket(address.parse(url, FIELD), config.storage.retry_seconds), root)


def prepare(config: Config, environment: Environment) -> None:
    """Bring what the stage may start from into the local folder, where `resume` looks for it; on the leader.

    Raises ConfigError for a wrong bucket or wrong credentials, StorageError.
    """
    remote = of(config, environment.checkpoints if environment.index == 0 else None)
    if remote is None:
        return
    remote.bucket.check()
    for uid, stage, kinds in _needed(remote, config):
        for kind in kinds:
            remote.bring_all(uid, stage, kind)


def _needed(remote: Remote, config: Config) -> Iterator[tuple[str, str, tuple[Kind, ...]]]:
    """Bring the checkpoint to start from; yield (uid, stage, kinds) of the snapshots that are needed with it."""
    job, stage, branch, start = config.job, config.stage, Branch(config.roll_backs), config.start_from
    own: tuple[Kind, ...] = ("snapshot", "origin") if config.snapshots is not None or config.algorithm == "PCA" else ()
    own += ("best",) if config.checkpoint.best is not None else ()
    found = remote.bring(job.uid, stage, config.attempt, branch.of(stage).usable)
    if found:
        yield job.uid, stage, own
    elif config.checkpoint.resume != "Never":
        theirs = remote.bring_of(Job(job.namespace, job.name), stage, job.uid, branch.of(stage).at_most_step)
        found = theirs is not None
        if theirs is not None:
            yield theirs, stage, own
    if start is None or (found and config.algorithm != "PCA"):
        return
    before: tuple[Kind, ...] = ("snapshot",) if config.algorithm == "PCA" else ()
    before += ("best",) if start.which == "Best" else ()
    if start.job_name is not None:
        other = None if found else remote.bring_of(Job(job.namespace, start.job_name), start.stage, job.uid)
        if other is not None:
            yield other, start.stage, before
    else:
        remote.bring(job.uid, start.stage, config.attempt, branch.of(start.stage).usable)
        yield job.uid, start.stage, before
