"""Finds what an earlier job of the same namespace and name left on the volume; whether it is used is the caller's.

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

from resnetboost_trainer import checkpoint
from resnetboost_trainer.checkpoint import Damaged, Found, Manifest

# Bounds of the search: jobs that share a volume, and manifests read to learn whose folder it is.
MAX_FOLDERS = 1000
MAX_MANIFESTS = 10

log = logging.getLogger(__name__)


def newest(root: Path, ours: Manifest, needed: Sequence[str]) -> Found | None:
    """The furthest whole checkpoint of our stage by the one of those jobs that saved last. Raises OSError."""
    for _, uid in sorted(_jobs(root, ours), reverse=True):
        found = checkpoint.newest(root, uid, ours.stage, needed)
        if found is not None:
            return found
    return None


def _jobs(root: Path, ours: Manifest) -> Iterator[tuple[float, str]]:
    """(when it saved its furthest checkpoint of our stage, uid) of each earlier job of our name."""
    for uid in _folders(root):
        manifest = None if uid == ours.job_uid else _furthest(root, uid, ours.stage)
        if manifest is not None and _name(manifest) == _name(ours):
            yield manifest.written, uid


def _name(manifest: Manifest) -> tuple[str, str]:
    return manifest.job_namespace, manifest.job_name


def _furthest(root: Path, uid: str, stage: str) -> Manifest | None:
    try:
        for path in itertools.islice(checkpoint.candidates(root, uid, stage), MAX_MANIFESTS):
            with contextlib.suppress(Damaged):
                return checkpoint.read_manifest(path)
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
