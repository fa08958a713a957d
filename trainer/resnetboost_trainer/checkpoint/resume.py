"""Resumes a stage from its furthest checkpoint, or starts it from another stage, a file of weights or new weights.

The job's own checkpoints come first, then those of an earlier job of the same name if `checkpoint.resume` allows them,
then the stage in `startFrom`, of this job or another, or a file of weights. Only rank 0 reads. What another job or a
file provides is saved as this job's own.
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from resnetboost_trainer.checkpoint import best, lookup, snapshots, state, store
from resnetboost_trainer.checkpoint.arrays import Arrays, all_finite
from resnetboost_trainer.checkpoint.branch import Branch
from resnetboost_trainer.checkpoint.evaluations import History
from resnetboost_trainer.checkpoint.pretrained import Read
from resnetboost_trainer.checkpoint.state import State
from resnetboost_trainer.checkpoint.store import Found, Kind, Manifest
from resnetboost_trainer.config import StartFrom
from resnetboost_trainer.data import rng
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.failures import ConfigError, StorageError

log = logging.getLogger(__name__)

# Manifest fields that must be equal for a run to continue from a checkpoint.
SAME = ("model", "dataset", "algorithm", "seed", "steps_per_epoch")

NEEDED = (state.MODEL, state.OPTIMIZER)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stage can start from: the checkpoints' `root` (None without checkpoints) and this attempt's manifest.

    `rule` is `checkpoint.resume`, for an earlier job's checkpoints; `total` is the stage's number of steps. `weights`
    reads pretrained weights from a file, for a first stage that has them. `branch` has the job's roll-backs.
    `taking_over(theirs, ours)` is called on the leader if the stage continues from an earlier job's checkpoint.
    """

    root: Path | None
    ours: Manifest
    rule: Literal["Never", "IfPresent", "Required"]
    start_from: StartFrom | None
    total: int
    weights: Callable[[], Read] | None = None
    branch: Branch = Branch()
    taking_over: Callable[[Manifest, Manifest], None] = lambda theirs, ours: None


class Begun(NamedTuple):
    """The stage's completed steps, and the lineage of its batches (see data/rng.py).

    `weights` is, on the leader, the fingerprint of the file that the run's first weights came from. The data order is
    `skipped` batches ahead of the steps. `rolled_back`: the next step is the first one since a roll-back. `history` is,
    on the leader, that of the evaluations so far.
    """

    step: int
    lineage: int
    weights: str = ""
    skipped: int = 0
    rolled_back: bool = False
    history: History | None = None


def begin(source: Source, state_: State, communicator: Communicator) -> Begun:
    """Restore the state of every rank to the point where training continues. A collective.

    The leader reads and broadcasts, so that all ranks start from the same file. Raises ConfigError for a checkpoint
    that does not fit or is required and missing, StorageError if the stage to start from left no checkpoint.
    """
    found = _furthest(source) if communicator.leads else None
    manifest = None if found is None else found.manifest
    skipped, rolled_back = _skipped(source, manifest)
    goes_on, step, lineage, skipped, rolled_back = communicator.broadcast_integers(
        [0, 0, 0, skipped, rolled_back]
        if manifest is None
        else [1, manifest.step, manifest.lineage, skipped, rolled_back]
    )
    if goes_on:
        state_.restore(None if found is None else found.contents)
        log.info("resumed from the checkpoint of step %d%s", step, _of_other_ranks(manifest, source.ours))
        if found is not None and found.manifest.job_uid != source.ours.job_uid:
            source.taking_over(found.manifest, source.ours)
        _adopt(source, found)
        history = None if manifest is None else manifest.history
        return Begun(step, lineage, source.ours.weights, skipped, bool(rolled_back), history)
    first = _first(source) if communicator.leads else None
    if first is not None:
        _log_origin(source.ours, first.manifest)
    read = source.weights() if source.weights is not None and communicator.leads else None
    (lineage,) = communicator.broadcast_integers([_lineage(source.ours, first, read)])
    model = None if first is None else first.contents[state.MODEL]
    if read is not None:
        model = state_.completed(read.arrays)
    state_.warm_start(model)
    begun = Begun(0, lineage, "" if read is None else read.fingerprint, skipped, bool(rolled_back))
    if source.weights is not None or (source.start_from is not None and source.start_from.job_name is not None):
        _save(source, state_.snapshot(), begun)
    return begun


def _of_other_ranks(theirs: Manifest | None, ours: Manifest) -> str:
    """Say, on the leader, that a gang of another size has saved a checkpoint."""
    if theirs is None or theirs.ranks in (0, ours.ranks):
        return ""
    return f", which {_ranks(theirs.ranks)} saved; {_ranks(ours.ranks)} here do the work of {ours.world_size}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _skipped(source: Source, manifest: Manifest | None) -> tuple[int, int]:
    """Batches to skip after that checkpoint, and 1 if a roll-back leads to it, else 0."""
    branch, ours = source.branch.of(source.ours.stage), source.ours.job_uid
    attempt = manifest.attempt if manifest is not None and manifest.job_uid == ours else -1
    return branch.skipped_batches(manifest, ours), int(bool(branch.ahead(attempt)))


def _lineage(ours: Manifest, first: Found | None, read: Read | None) -> int:
    """Return the lineage of a new stage: the seed's alone, unless its weights come from a checkpoint's training."""
    theirs = first.manifest.lineage if first is not None else read.lineage if read is not None else None
    return rng.BY_SEED_ALONE if theirs is None else rng.descended(theirs, ours.stage)


def resumed(source: Source) -> Manifest | None:
    """Return the manifest of the checkpoint that `begin` resumes from, on the leader. Raises like `begin`."""
    found = _furthest(source, arrays=False)
    return None if found is None else found.manifest


def origin(source: Source) -> Manifest | None:
    """Return the manifest of the last checkpoint of the stage in `startFrom`, on the leader. Raises like `begin`."""
    start = source.start_from
    last = None if start is None else msgspec.structs.replace(start, which="Last")
    first = _first(msgspec.structs.replace(source, start_from=last), arrays=False)
    return None if first is None else first.manifest


def _furthest(source: Source, arrays: bool = True) -> Found | None:
    """Return this stage's furthest checkpoint by earlier attempts, or else by an earlier job."""
    ours = source.ours
    if source.root is None:
        return _of_earlier_job(source, arrays)
    usable = source.branch.of(ours.stage).usable
    found = store.newest(source.root, ours.job_uid, ours.stage, NEEDED, ours.attempt, arrays, usable)
    if found is None:
        return _of_earlier_job(source, arrays)
    difference = _difference(found.manifest, source)
    if difference:
        raise ConfigError(f"{found.path.name} is a checkpoint of another job: {difference}; restore that setting")
    return found


def _of_earlier_job(source: Source, arrays: bool) -> Found | None:
    ours, rule = source.ours, source.rule
    if rule == "Never":
        return None
    job = f"{ours.job_namespace}/{ours.job_name}"
    branch, found = source.branch.of(ours.stage), None
    if source.root is not None:
        found = _by_name(source.root, ours, ours.job_name, ours.stage, NEEDED, arrays, branch.at_most_step)
    if found is not None:
        theirs = f"{found.path.name} of the earlier job {job} ({found.manifest.job_uid})"
        difference = _difference(found.manifest, source)
        if difference:
            remedy = "restore that setting, or set checkpoint.resume to Never to start over"
            raise ConfigError(f"checkpoint.resume is {rule}, but {theirs} does not fit: {difference}; {remedy}")
        log.info("resuming from %s", theirs)
    elif rule == "Required" and source.start_from is None and not branch.roll_backs:
        reason = f"no earlier job {job} left a complete checkpoint of stage {ours.stage} on this volume"
        remedy = "set checkpoint.claimName to the claim it used, or checkpoint.resume to IfPresent"
        raise ConfigError(f"checkpoint.resume is Required, but {reason}; {remedy}")
    return found


def _difference(manifest: Manifest, source: Source) -> str:
    """Return why the stage cannot continue from a checkpoint, or "" if it can."""
    for field in SAME:
        theirs, own = getattr(manifest, field), getattr(source.ours, field)
        if theirs != own:
            return f"its {field} is {theirs!r}, this job's is {own!r}"
    if not _same_batch(manifest, source.ours):
        return f"its global batch is {_batch(manifest)}, this job's is {_batch(source.ours)}"
    return f"it is of step {manifest.step}, this stage ends at {source.total}" if manifest.step > source.total else ""


def _same_batch(theirs: Manifest, ours: Manifest) -> bool:
    """True if the global batches are equal, for any number of ranks and micro batches.

    If the checkpoint does not record the micro batches, any whole number of them is accepted.
    """
    micro, own = (manifest.world_size * manifest.local_batch_size for manifest in (theirs, ours))
    whole = own * (ours.micro_batches or 1)
    if theirs.micro_batches is None:
        return micro > 0 and whole % micro == 0
    return whole == micro * theirs.micro_batches


def _batch(manifest: Manifest) -> str:
    """Format the global batch in terms of a user's fields: 66 (2 ranks x localBatchSize 33)."""
    parts = manifest.micro_batches or 1
    accumulated = f" x accumulationSteps {parts}" if parts > 1 else ""
    whole = manifest.world_size * manifest.local_batch_size * parts
    return f"{whole} ({_ranks(manifest.world_size)} x localBatchSize {manifest.local_batch_size}{accumulated})"


def _by_name(
    root: Path,
    ours: Manifest,
    name: str,
    stage: str,
    needed: tuple[str, ...],
    arrays: bool,
    at_most: float = math.inf,
    read: lookup.Read = store.newest,
) -> Found | None:
    """Find a checkpoint by another job in our namespace, which may be an earlier job of our name."""
    job = lookup.Job(ours.job_namespace, name)
    return lookup.newest(root, job, stage, needed, ours.job_uid, arrays, at_most, read)


def _adopt(source: Source, found: Found | None) -> None:
    """Save an earlier job's checkpoint as this attempt's: a later attempt or stage must not depend on that job.

    Snapshots and best checkpoints are adopted first: if a checkpoint exists, so do all of those before it.
    """
    if source.root is None or found is None or found.manifest.job_uid == source.ours.job_uid:
        return
    theirs = found.manifest
    reached: dict[Kind, float] = {"snapshot": theirs.step, "origin": math.inf}  # "origin" counts another stage's steps
    for kind, last_step in reached.items():
        left = snapshots.find(source.root, theirs.job_uid, theirs.stage, last_step, kind)
        snapshots.adopt(source.root, left, source.ours, kind)
    best.adopt(source.root, theirs.job_uid, theirs.stage, theirs.step, source.ours)
    skipped, _ = _skipped(source, theirs)
    ours = msgspec.structs.replace(
        source.ours,
        step=theirs.step,
        basis=theirs.basis,
        lineage=theirs.lineage,
        skipped_batches=skipped,
        history=theirs.history,
    )
    _write(source.root, ours, found.contents)


def _save(source: Source, contents: dict[str, Arrays] | None, begun: Begun) -> None:
    """Save the first weights if they come from another job or a file, which may change before the next attempt."""
    if source.root is not None and contents is not None:
        ours = msgspec.structs.replace(
            source.ours, lineage=begun.lineage, weights=begun.weights, skipped_batches=begun.skipped
        )
        _write(source.root, ours, contents)


def _write(root: Path, ours: Manifest, contents: dict[str, Arrays]) -> None:
    if not all_finite(contents):
        raise ConfigError("the weights that the stage begins with are not finite; start it from another checkpoint")
    store.write(store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt), ours, contents)


def _first(source: Source, arrays: bool = True) -> Found | None:
    """Return the checkpoint in `startFrom`, or None without one."""
    start = source.start_from
    if start is None:
        return None
    read = best.read if start.which == "Best" else store.newest
    if start.job_name is not None:
        return _of_other_job(source, start.job_name, start.stage, read, arrays)
    return _of_other_stage(source, start.stage, read, arrays)


def _log_origin(ours: Manifest, theirs: Manifest) -> None:
    whose = "" if theirs.job_uid == ours.job_uid else f" of job {theirs.job_name} ({theirs.job_uid})"
    log.info("stage %s starts from the weights of stage %s%s, step %d", ours.stage, theirs.stage, whose, theirs.step)


def _of_other_stage(source: Source, stage: str, read: lookup.Read, arrays: bool) -> Found:
    ours, found = source.ours, None
    if source.root is not None:
        usable = source.branch.of(stage).usable
        found = read(source.root, ours.job_uid, stage, (state.MODEL,), ours.attempt, arrays, usable)
    if found is None:
        begins = f"with the best of stage {stage}" if read is best.read else f"where stage {stage} ended"
        reason = f"stage {ours.stage} begins {begins}, which left no usable checkpoint"
        raise StorageError(f"{reason}; restore its folder, or train that stage again by a new job")
    return found


def _of_other_job(source: Source, name: str, stage: str, read: lookup.Read, arrays: bool) -> Found:
    ours, field = source.ours, f"stage {source.ours.stage}: startFrom.jobName is {name}"
    if source.root is None:
        raise ConfigError(f"{field}, but this job keeps no checkpoints; set checkpoint.claimName to the claim it used")
    found = _by_name(source.root, ours, name, stage, (state.MODEL,), arrays, read=read)
    if found is None:
        kind = "best" if read is best.read else "complete"
        reason = f"no job {ours.job_namespace}/{name} left a {kind} checkpoint of stage {stage} on this volume"
        remedy = "set checkpoint.claimName to the claim it used, or wait until it has saved one"
        raise StorageError(f"{field}, but {reason}; {remedy}")
    return found
