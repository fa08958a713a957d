"""Where a gang begins: its stage's furthest checkpoint, the stage before, or fresh weights. Rank 0 alone reads."""

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from resnetboost_trainer import checkpoint, state
from resnetboost_trainer.checkpoint import Found, Manifest
from resnetboost_trainer.distributed import Communicator
from resnetboost_trainer.state import Arrays, State
from resnetboost_trainer.verdict import ConfigError, StorageError

log = logging.getLogger(__name__)

# What makes a position in one run mean the same in another.
SAME = ("model", "dataset", "seed", "steps_per_epoch")


class Source(msgspec.Struct, frozen=True):
    """Where checkpoints of the job are, and what this attempt's own would say. `root` is None where none are kept."""

    root: Path | None
    ours: Manifest
    start_from: str | None


def begin(source: Source, state_: State, communicator: Communicator) -> int:
    """Bring the state of every rank to where training goes on; returns the steps that are done. A collective.

    The gang cannot start from different files: rank 0 reads, the others get its bits.
    Raises ConfigError for a checkpoint of another job, StorageError when the stage before left nothing.
    """
    found = _furthest(source) if communicator.rank == 0 else None
    step = -1 if found is None else found.manifest.step
    done = int(communicator.broadcast(np.array([step], np.float32))[0])
    if done >= 0:
        state_.restore(None if found is None else found.contents)
        log.info("resumed from the checkpoint of step %d", done)
        return done
    state_.warm_start(_model_of_stage_before(source) if communicator.rank == 0 else None)
    return 0


def _furthest(source: Source) -> Found | None:
    """The furthest checkpoint of this stage by earlier attempts."""
    ours = source.ours
    found = _newest(source, ours.stage, (state.MODEL, state.OPTIMIZER))
    if found is not None:
        _check_job(found, ours)
    return found


def _check_job(found: Found, ours: Manifest) -> None:
    for field in SAME:
        theirs, own = getattr(found.manifest, field), getattr(ours, field)
        if theirs != own:
            difference = f"its {field} is {theirs!r}, this job's is {own!r}"
            raise ConfigError(f"{found.path.name} is a checkpoint of another job: {difference}")


def _newest(source: Source, stage: str, needed: Sequence[str]) -> Found | None:
    if source.root is None:
        return None
    return checkpoint.newest(source.root, source.ours.job_uid, stage, source.ours.attempt, needed)


def _model_of_stage_before(source: Source) -> Arrays | None:
    if source.start_from is None:
        return None
    found = _newest(source, source.start_from, (state.MODEL,))
    if found is None:
        ours, before = source.ours.stage, source.start_from
        raise StorageError(f"stage {ours} begins where stage {before} ended, which left no usable checkpoint")
    log.info("starting from the weights of stage %s, step %d", source.start_from, found.manifest.step)
    return found.contents[state.MODEL]
