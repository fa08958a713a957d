"""Finds what the jobs of a namespace and name left on the volume; whether it is used is the caller's.

A job that is deleted and applied again gets another uid, and so another folder beside that of its predecessor, those of
other jobs and whatever else lies on the volume. Nothing there is written; a manifest counts only where it says it is.
"""

import contextlib
import heapq
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.store import Damaged, Found, Manifest

# Bounds of the search: jobs that share a volume, and manifests read to learn whose folder it is.
MAX_FOLDERS = 1000
MAX_MANIFESTS = 10

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """The name that jobs are searched by."""

    namespace: str
    name: str


def newest(root: Path, job: Job, stage: str, needed: Sequence[str], but: str, arrays: bool = True) -> Found | None:
    """The furthest whole checkpoint of a stage by the one of that name's jobs that saved last; `but` is a uid.

    Without `arrays` as checkpoint.newest. Raises OSError.
    """
    for _, uid in sorted(_jobs(root, job, stage, but), reverse=True):
        found = store.newest(root, uid, stage, needed, arrays=arrays)
        if found is not None:
            return found
    return None


def _jobs(root: Path, job: Job, stage: str, but: str) -> Iterator[tuple[float, str]]:
    """(when it saved its furthest checkpoint of the stage, uid) of each job of that name."""
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
    """The folders that were begun last, one per job; there may be no root yet."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        folders = [(_changed(entry), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    if len(folders) > MAX_FOLDERS:
        log.warning("%s: looking into the latest %d of %d folders only", root, MAX_FOLDERS, len(folders))
    return [name for _, name in heapq.nlargest(MAX_FOLDERS, folders)]


def _changed(entry: os.DirEntry[str]) -> float:
    """When a stage was last begun there; somebody else may have removed it meanwhile."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0
