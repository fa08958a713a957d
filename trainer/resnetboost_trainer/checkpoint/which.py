"""Selects one of the checkpoints below a folder or an address, by the option --which: best, last, averaged or a step.

The stage is that of the checkpoint written last; another one is selected by naming its folder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from resnetboost_trainer.checkpoint import best
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.store import Kind, Manifest
from resnetboost_trainer.data.preprocessing import readable
from resnetboost_trainer.failures import ConfigError

LAST = ("last", "averaged")  # averaged: the averaged weights of the last one
WORDS = ("best", *LAST)
# Steps that a message lists: the first ones and the last ones.
MAX_LISTED = 12

Place = tuple[Manifest, Path]


def check(which: str) -> None:
    """Raise ConfigError for anything but one of the words or a step."""
    if which not in WORDS and not (which.isascii() and which.isdigit() and len(which) <= 18):
        raise ConfigError(f"--which: {readable(which)} is neither {', '.join(WORDS)} nor a step; use one of them")


def checkpoints(folder: Path, which: str) -> Iterator[Place]:
    """List the checkpoints that --which selects, the preferred one first. Raises ConfigError if there is none."""
    return selected(str(folder), which, lambda kind: weightfile.checkpoints(folder, kind))


def selected(folder: str, which: str, listed: Callable[[Kind], Iterable[Place]]) -> Iterator[Place]:
    """Select like `checkpoints` from what is `listed` of a kind, the newest first; `folder` is its name."""
    last = list(listed("step"))
    if which in LAST or not (last or which == "best"):
        return iter(last)
    marked = list(listed("best"))
    stage = next((manifest for manifest, _ in weightfile.newest_first([*last, *marked])), None)
    last, marked = ([place for place in found if _is_of(place[0], stage)] for found in (last, marked))
    if which == "best":
        return iter(_best(folder, marked, stage))
    found = [place for place in (*last, *marked) if place[0].step == int(which)]
    if not found:
        there = _listed({place[0].step for place in (*last, *marked)})
        raise ConfigError(f"--which {which}: {_of(folder, stage)} has no checkpoint of that step; there are {there}")
    return iter(found)


def _is_of(manifest: Manifest, other: Manifest | None) -> bool:
    return other is not None and (manifest.job_uid, manifest.stage) == (other.job_uid, other.stage)


def _best(folder: str, marked: Sequence[Place], stage: Manifest | None) -> list[Place]:
    found = [(kept.manifest, kept.path) for kept in best.ranked(marked)]
    if not found:
        remedy = "train with checkpoint.best, such as {metric: top1}, or use --which last"
        raise ConfigError(f"--which best: {_of(folder, stage)} kept no best checkpoint; {remedy}")
    return found


def _of(folder: str, stage: Manifest | None) -> str:
    return f"stage {readable(stage.stage)} in {folder}" if stage is not None else folder


def _listed(steps: set[int]) -> str:
    ordered = [str(step) for step in sorted(steps)]
    if len(ordered) > MAX_LISTED:
        half = MAX_LISTED // 2
        ordered = [*ordered[:half], "...", *ordered[-half:]]
    return f"those of {'step' if len(steps) == 1 else 'steps'} {', '.join(ordered)}"
