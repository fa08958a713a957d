"""Where a gang begins: its stage's furthest checkpoint, the stage before, or fresh weights. Rank 0 alone reads.

A job's own checkpoints always win. Those of an earlier job of the same name come next, if `checkpoint.resume` says so.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from resnetboost_trainer import checkpoint, earlier, state
from resnetboost_trainer.checkpoint import Found, Manifest
from resnetboost_trainer.distributed import Communicator
from resnetboost_trainer.state import Arrays, State
from resnetboost_trainer.verdict import ConfigError, StorageError

log = logging.getLogger(__name__)

# What makes a position in one run mean the same in another.
SAME = ("model", "dataset", "algorithm", "seed", "steps_per_epoch")

NEEDED = (state.MODEL, state.OPTIMIZER)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where checkpoints are (`root` is None where none are kept), and what this attempt's own would say.

    `rule` is about an earlier job's checkpoints; `total` is the number of steps of the stage.
    """

    root: Path | None
    ours: Manifest
    rule: Literal["Never", "IfPresent", "Required"]
    start_from: str | None
    total: int


def begin(source: Source, state_: State, communicator: Communicator) -> int:
    """Bring the state of every rank to where training goes on; returns the steps that are done. A collective.

    The gang cannot start from different files: rank 0 reads, the others get its bits.
    Raises ConfigError for a checkpoint that does not fit or is required and missing, StorageError when the stage before
    left nothing.
    """
    found = _furthest(source) if communicator.rank == 0 else None
    step = -1 if found is None else found.manifest.step
    done = int(communicator.broadcast(np.array([step], np.float32))[0])
    if done >= 0:
        state_.restore(None if found is None else found.contents)
        log.info("resumed from the checkpoint of step %d", done)
        _adopt(source, found)
        return done
    state_.warm_start(_model_of_stage_before(source) if communicator.rank == 0 else None)
    return 0


def _furthest(source: Source) -> Found | None:
    """The furthest checkpoint of this stage by earlier attempts, or else by an earlier job."""
    found = _newest(source, source.ours.stage, NEEDED)
    if found is None:
        return None if source.rule == "Never" else _of_earlier_job(source)
    difference = _difference(found.manifest, source)
    if difference:
        raise ConfigError(f"{found.path.name} is a checkpoint of another job: {difference}")
    return found


def _of_earlier_job(source: Source) -> Found | None:
    ours, rule = source.ours, source.rule
    job = f"{ours.job_namespace}/{ours.job_name}"
    found = None if source.root is None else earlier.newest(source.root, ours, NEEDED)
    if found is not None:
        theirs = f"{found.path.name} of the earlier job {job} ({found.manifest.job_uid})"
        difference = _difference(found.manifest, source)
        if difference:
            remedy = "restore that setting, or set checkpoint.resume to Never to begin afresh"
            raise ConfigError(f"checkpoint.resume is {rule}, but {theirs} does not fit: {difference}; {remedy}")
        log.info("going on from %s", theirs)
    elif rule == "Required" and source.start_from is None:
        reason = f"no earlier job {job} left a whole checkpoint of stage {ours.stage} on this volume"
        remedy = "set checkpoint.claimName to the claim it used, or checkpoint.resume to IfPresent"
        raise ConfigError(f"checkpoint.resume is Required, but {reason}; {remedy}")
    return found


def _difference(manifest: Manifest, source: Source) -> str:
    """Why a stage cannot go on from that checkpoint; empty if it can."""
    for field in SAME:
        theirs, own = getattr(manifest, field), getattr(source.ours, field)
        if theirs != own:
            return f"its {field} is {theirs!r}, this job's is {own!r}"
    return f"it is of step {manifest.step}, this stage ends at {source.total}" if manifest.step > source.total else ""


def _adopt(source: Source, found: Found | None) -> None:
    """Keep an earlier job's checkpoint as this attempt's: a later attempt or stage must not depend on that job."""
    ours = source.ours
    if source.root is None or found is None or found.manifest.job_uid == ours.job_uid:
        return
    directory = checkpoint.attempt_directory(source.root, ours.job_uid, ours.stage, ours.attempt)
    checkpoint.write(directory, msgspec.structs.replace(ours, step=found.manifest.step), found.contents)


def _newest(source: Source, stage: str, needed: Sequence[str]) -> Found | None:
    if source.root is None:
        return None
    return checkpoint.newest(source.root, source.ours.job_uid, stage, needed, source.ours.attempt)


def _model_of_stage_before(source: Source) -> Arrays | None:
    if source.start_from is None:
        return None
    found = _newest(source, source.start_from, (state.MODEL,))
    if found is None:
        ours, before = source.ours.stage, source.start_from
        raise StorageError(f"stage {ours} begins where stage {before} ended, which left no usable checkpoint")
    log.info("starting from the weights of stage %s, step %d", source.start_from, found.manifest.step)
    return found.contents[state.MODEL]
