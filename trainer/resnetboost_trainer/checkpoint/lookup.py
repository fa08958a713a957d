"""Finds checkpoints of earlier jobs by namespace and name on the checkpoint volume; reads only.

A job that is deleted and applied again gets another uid and so another folder, beside those of its predecessor and of
other jobs. A manifest counts only if it lies in the folder that it names.
"""

import contextlib
import heapq
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.store import Damaged, Found, Manifest

# Bounds of the search: jobs that share a volume, and manifests read per folder to find its job's name.
MAX_FOLDERS = 1000
MAX_MANIFESTS = 10

# `store.newest` or `best.read`: reads one of a stage's checkpoints.
Read = Callable[..., Found | None]

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """Namespace and name of the jobs to search for."""

    namespace: str
    name: str


def newest(
    root: Path,
    job: Job,
    stage: str,
    needed: Sequence[str],
    but: str,
    arrays: bool = True,
    at_most: float = math.inf,
    read: Read = store.newest,
) -> Found | None:
    """Return a stage's furthest intact checkpoint, by the job of that name that saved last; skip the uid `but`.

    It is of step `at_most` or before. `arrays` as in `store.newest`; `read` may be `best.read`. Raises OSError.
    """
    for _, uid in sorted(_jobs(root, job, stage, but), reverse=True):
        found = read(root, uid, stage, needed, arrays=arrays, usable=lambda step, _: step <= at_most)
        if found is not None:
            return found
    return None


def _jobs(root: Path, job: Job, stage: str, but: str) -> Iterator[tuple[float, str]]:
    """Yield (time of the stage's furthest checkpoint, uid) for each job of that name."""
    for uid in _folders(root):
        manifest = None if uid == but else _furthest(root, uid, stage)
        if manifest is not None and Job(manifest.job_namespace, manifest.job_name) == job:
            yield manifest.written, uid


def _furthest(root: Path, uid: str, stage: str) -> Manifest | None:
    try:
        for path in itertools.islice(store.candidates(root, uid, stage), MAX_MANIFESTS):
            with contextlib.suppress(Damaged):
                return store.read_manifest(path)
    except OSError as error:
        log.info("not looking for checkpoints in %s: %s", root / uid, error.strerror)
    return None


def _folders(root: Path) -> list[str]:
    """List the job folders that changed last; none if the root does not exist yet."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        folders = [(_changed(entry), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    if len(folders) > MAX_FOLDERS:
        log.warning("%s: looking into the latest %d of %d folders only", root, MAX_FOLDERS, len(folders))
    return [name for _, name in heapq.nlargest(MAX_FOLDERS, folders)]


def _changed(entry: os.DirEntry[str]) -> float:
    """Return the folder's modification time, when a stage last started there; 0 if it was removed meanwhile."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0
