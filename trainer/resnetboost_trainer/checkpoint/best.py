"""The best checkpoints of a stage, `best-<step>`, beside the newest ones.

Each has the weights as they were evaluated, and the evaluation in its manifest, but no optimizer: a training never goes
on from it. What lies on disk is all there is to know, so that a restart at any point finds the same ones.
"""

import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from resnetboost_api.evaluations import Best
from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.evaluations import BestMark, gain
from resnetboost_trainer.checkpoint.store import Damaged, File, Found, Manifest, Usable, every

# More cannot be kept, but for those of killed attempts.
MAX_MANIFESTS = 1000

log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """One of the best checkpoints."""

    path: Path
    manifest: Manifest
    mark: BestMark
    value: float


def find(root: Path, job_uid: str, stage: str, before_attempt: float = math.inf, usable: Usable = every) -> list[Kept]:
    """List a stage's best checkpoints, the best first; reads manifests only. Raises OSError."""
    paths = store.candidates(root, job_uid, stage, before_attempt, "best", usable)
    read = ((manifest, path) for path in itertools.islice(paths, MAX_MANIFESTS) if (manifest := _read(path)))
    return ranked(read)


def ranked(places: Iterable[tuple[Manifest, Path]]) -> list[Kept]:
    """Rank best checkpoints by the metric of the newest one; of equal ones the earliest step comes first."""
    found = [
        Kept(path, manifest, mark, mark.value)
        for manifest, path in places
        if (mark := manifest.best) is not None and mark.value is not None
    ]
    if not found:
        return []
    metric = max(found, key=lambda kept: (kept.manifest.attempt, kept.manifest.step)).mark.metric
    known = [kept._replace(value=value) for kept in found if (value := kept.mark.evaluation.figure(metric)) is not None]
    return sorted(known, key=lambda kept: (-gain(metric, kept.value, 0), kept.manifest.step, kept.manifest.written))


def _read(path: Path) -> Manifest | None:
    try:
        return store.load_manifest(path)
    except Damaged as damage:
        log.warning("best checkpoint %s is damaged (%s); trying another", path, damage)
        return None


def read(
    root: Path,
    job_uid: str,
    stage: str,
    needed: Sequence[str],
    before_attempt: float = math.inf,
    arrays: bool = True,
    usable: Usable = every,
) -> Found | None:
    """Read a stage's best intact checkpoint; log damaged ones and skip them. As `store.newest`."""
    for kept in find(root, job_uid, stage, before_attempt, usable):
        try:
            manifest = store.verify(kept.path, needed)
            contents = {name: store.read(kept.path, name) for name in manifest.files if arrays}
            return Found(kept.path, manifest, contents)
        except Damaged as damage:
            log.warning("best checkpoint %s is damaged (%s); trying another", kept.path, damage)
    return None


def is_wanted(rule: Best, mark: BestMark, kept: Sequence[Kept]) -> bool:
    """True if a checkpoint with that mark would be one of the `rule.keep` best."""
    value, same = mark.value, [found for found in kept if found.manifest.step == mark.evaluation.step]
    if value is None:
        return False
    # A run that resumed there evaluates again: the same weights, unless the gang has another size.
    rivals = same[:1] or kept[rule.keep - 1 : rule.keep]
    return all(_is_better(mark, value, found) for found in rivals)


def _is_better(mark: BestMark, value: float, found: Kept) -> bool:
    theirs = found.mark.evaluation.figure(mark.metric)
    return theirs is None or gain(mark.metric, value, theirs) > 0


def prune(root: Path, job_uid: str, stage: str, attempt: int, keep: int, usable: Usable = every) -> list[Kept]:
    """Delete all but the `keep` best of this and older attempts; return those that stay, the best first.

    Those that are not `usable` are of a branch that was abandoned: none of them stays. A manifest that cannot be read
    may be readable later: its checkpoint stays.
    """
    found, steps, stay = find(root, job_uid, stage, attempt + 1, usable), set[int](), list[Kept]()
    for kept in found:
        if kept.manifest.step not in steps and len(stay) < keep:
            steps.add(kept.manifest.step)
            stay.append(kept)
    left = {kept.path for kept in stay}
    usable_paths = set(store.candidates(root, job_uid, stage, attempt + 1, "best", usable))
    abandoned = [
        path for path in store.candidates(root, job_uid, stage, attempt + 1, "best") if path not in usable_paths
    ]
    store.remove([*(kept.path for kept in found if kept.path not in left), *abandoned])
    return stay


def adopt(root: Path, job_uid: str, stage: str, last_step: float, ours: Manifest) -> None:
    """Take another job's best checkpoints up to a step over as this attempt's, so that they outlive that job.

    Files are hard-linked if the volume supports it; damaged ones are left behind. Raises OSError.
    """
    directory = store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt)
    for kept in find(root, job_uid, stage, usable=lambda step, _: step <= last_step):
        manifest = msgspec.structs.replace(ours, step=kept.manifest.step, best=kept.mark)
        try:
            store.verify(kept.path)
            store.write_files(directory, manifest, _linker(kept), "best")
        except Damaged as damage:
            log.warning("best checkpoint %s is damaged (%s); it is not taken over", kept.path, damage)


def _linker(kept: Kept) -> store.Fill:
    def fill(partial: Path) -> dict[str, File]:
        for name in kept.manifest.files:
            store.link(kept.path / name, partial / name)
        return dict(kept.manifest.files)

    return fill
