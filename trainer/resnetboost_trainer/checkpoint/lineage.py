"""Finds the stages that led to a checkpoint, each with its last evaluation, in the folder of its job's checkpoints.

Files that the trainer did not write are skipped.
"""

import contextlib
import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.store import Damaged, Manifest

METRICS = "metrics.csv"
MAX_STAGES = 100
MAX_BYTES = 1 << 30


class Stage(msgspec.Struct, frozen=True):
    """A stage's last checkpoint, and top-1, top-5 (0 to 1) and loss of the last evaluation up to it.

    `ended` says why the stage ended before its last epoch.
    """

    manifest: Manifest
    evaluation: tuple[float, float, float] | None
    ended: str = ""


def stages(path: Path, manifest: Manifest, averaged: bool = False) -> list[Stage]:
    """List the stages up to the checkpoint at `path`, the earliest first and its own last.

    A checkpoint outside its job's folder has only its own stage. With `averaged`, the evaluation of its own stage is
    that of the averaged weights.
    """
    path = path.resolve()
    try:
        store.read_manifest(path)
    except (Damaged, IndexError):
        return [Stage(manifest, _own_evaluation(path, manifest, averaged))]
    job, own = path.parents[2], manifest.stage
    earlier = [found for found in _last_of_others(job, own) if found[1].written < manifest.written]
    ordered = sorted(earlier, key=lambda found: found[1].written)
    before = [Stage(theirs, _evaluation(place, theirs), _ended(theirs)) for place, theirs in ordered]
    last = next(_last(job, own), (path, manifest))[1]
    return [*before, Stage(manifest, _own_evaluation(path, manifest, averaged), _ended(last))]


def _ended(last: Manifest) -> str:
    return "" if last.stopped_early is None else last.stopped_early.message


def _own_evaluation(path: Path, manifest: Manifest, averaged: bool) -> tuple[float, float, float] | None:
    """Return the evaluation of a best checkpoint from its manifest, else from the attempt's metrics."""
    mark = manifest.best
    if mark is None or mark.evaluation.averaged != averaged or mark.evaluation.loss is None:
        return _evaluation(path, manifest, "ema_" if averaged else "")
    return mark.evaluation.top1, mark.evaluation.top5, mark.evaluation.loss


def _last_of_others(job: Path, own: str) -> Iterator[tuple[Path, Manifest]]:
    for folder in sorted(job.iterdir())[:MAX_STAGES]:
        if folder.is_dir() and folder.name != own:
            yield from itertools.islice(_last(job, folder.name), 1)


def _last(job: Path, stage: str) -> Iterator[tuple[Path, Manifest]]:
    """Yield the readable checkpoints of a stage, the furthest first."""
    for place in store.candidates(job.parent, job.name, stage):
        with contextlib.suppress(Damaged):
            yield place, store.read_manifest(place)


def _evaluation(place: Path, manifest: Manifest, which: str = "") -> tuple[float, float, float] | None:
    """Return the attempt's last evaluation up to the checkpoint's step, from the columns with the prefix `which`."""
    found = None
    try:
        with (place.parent / METRICS).open(newline="") as file:
            if file.seek(0, 2) > MAX_BYTES:
                return None
            file.seek(0)
            for row in csv.DictReader(file):
                if row.get(f"{which}top1") and int(row["step"]) <= manifest.step:
                    top1, top5, loss = (float(row[f"{which}{name}"]) for name in ("top1", "top5", "test_loss"))
                    found = top1, top5, loss
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return None
    return found if found is None or all(math.isfinite(value) for value in found) else None
