"""Prepares the basis of a PCA stage from an earlier stage's snapshots and distributes its columns to the ranks.

Only rank 0 has the volume. It streams the snapshots twice: once for their inner products, which are cached by content,
and once for the components, whose columns it sends to the ranks. P is never complete on one rank, nor on disk, where
reading it would take longer than computing it again.
"""

import contextlib
import hashlib
import logging
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from resnetboost_trainer.checkpoint import resume, snapshots, store
from resnetboost_trainer.checkpoint.resume import Source
from resnetboost_trainer.checkpoint.snapshots import Reader, Snapshot
from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.optim.pca import gram, subspace
from resnetboost_trainer.optim.pca.gram import Components, Doubles
from resnetboost_trainer.optim.pca.subspace import Basis

# Folder beside the jobs' folders: cached inner products by the digest of their snapshots, shared by all jobs.
PRODUCTS = ".products"
_TENSOR = "products"

# Columns of P that rank 0 sends at a time: 17 MB for 32 components.
SENT = 131072

log = logging.getLogger(__name__)


class Shape(msgspec.Struct, frozen=True):
    """Shape of the basis: k `components` of M `numbers`; `layout` identifies the network's parameters."""

    components: int
    numbers: int
    layout: str


def prepare(source: Source, shape: Shape, communicator: Communicator) -> tuple[Basis, str]:
    """Return this rank's columns and, on the leader, the digest of the snapshots they come from. A collective.

    Raises ConfigError if the snapshots are too few, of another network or not those that this stage started with,
    StorageError for damaged ones.
    """
    if not communicator.leads:
        return _spread(None, None, shape, communicator), ""
    chosen, digest = _choose(source, shape)
    with Reader(chosen, shape.numbers) as reader:
        found = _components(source.root, reader, chosen, shape)
        basis = _spread(found, reader, shape, communicator)
        reader.verify()
    log.info("%d components explain %.4f of %d snapshots", shape.components, basis.explained, len(chosen))
    return basis, digest


def _choose(source: Source, shape: Shape) -> tuple[list[Snapshot], str]:
    """Select the snapshots that this stage started with, or those of the stage in `startFrom`; return their digest."""
    resumed = resume.resumed(source)
    chosen = [] if resumed is None else _taken_over(source, resumed)
    chosen = chosen or _of_origin(source, adopt=resumed is None)
    _check(chosen, source, shape)
    digest = _digest(chosen)
    if resumed is not None and resumed.basis != digest:
        reason = f"stage {source.ours.stage} began with other snapshots than are there now"
        raise ConfigError(f"{reason}: restore those that were removed, or start over with checkpoint.resume: Never")
    return chosen, digest


def _taken_over(source: Source, resumed: Manifest) -> list[Snapshot]:
    """List the snapshots that this stage adopted from another job when it started."""
    assert source.root is not None, "what is resumed lies somewhere"
    return snapshots.find(source.root, resumed.job_uid, resumed.stage, kind="origin")


def _of_origin(source: Source, adopt: bool) -> list[Snapshot]:
    origin = resume.origin(source)
    if source.root is None or origin is None:
        raise ConfigError("algorithm PCA starts from a stage with snapshots; name it in startFrom")
    found = snapshots.find(source.root, origin.job_uid, origin.stage, origin.step)
    if adopt and origin.job_uid != source.ours.job_uid:
        snapshots.adopt(source.root, found, source.ours, kind="origin")
    return found


def _check(chosen: Sequence[Snapshot], source: Source, shape: Shape) -> None:
    before = source.start_from.stage if source.start_from is not None else ""
    if len(chosen) <= shape.components:
        reason = f"pca.components: {shape.components} needs more than so many snapshots, and stage {before} left"
        raise ConfigError(f"{reason} {len(chosen)}; ask for fewer components, or for more snapshots of that stage")
    if chosen[0].layout != shape.layout:
        raise ConfigError(f"the snapshots of stage {before} are of another network; use the same model")


def _components(root: Path | None, reader: Reader, chosen: Sequence[Snapshot], shape: Shape) -> Components:
    assert root is not None, "snapshots lie somewhere"
    inner = _products(root / PRODUCTS, reader, chosen, shape.numbers)
    try:
        return gram.components(inner, shape.components)
    except ValueError as error:
        raise ConfigError(f"pca.components: {error}; ask for fewer, or keep snapshots that differ more") from error


def _products(folder: Path, reader: Reader, chosen: Sequence[Snapshot], numbers: int) -> Doubles:
    """Return the snapshots' inner products: from the cache, from the cache plus one new row, or computed."""
    place = _place(folder, chosen)
    kept = _read(place, len(chosen))
    if kept is not None:
        return kept
    before = _read(_place(folder, chosen[:-1]), len(chosen) - 1)
    if before is not None:
        inner = gram.grown(before, reader.read, 0, numbers)
    else:
        inner = gram.products(reader.read, 0, numbers, len(chosen))
    reader.verify()
    _write(place, inner)
    return inner


def _place(folder: Path, of: Sequence[Snapshot]) -> Path:
    return folder / f"{_digest(of)}.safetensors"


def _digest(of: Sequence[Snapshot]) -> str:
    return hashlib.sha256("".join(snapshot.sha256 for snapshot in of).encode()).hexdigest()


def _read(place: Path, count: int) -> Doubles | None:
    """Read cached inner products; None if there are none or they are invalid."""
    try:
        status = place.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > 8 * count**2 + 4096:
            return None
        inner = safetensors.numpy.load(place.read_bytes())[_TENSOR]
    except (OSError, SafetensorError, KeyError):
        return None
    fits = inner.shape == (count, count) and inner.dtype == np.float64 and np.isfinite(inner).all()
    return inner if fits and (inner == inner.T).all() else None


def _write(place: Path, inner: Doubles) -> None:
    """Write inner products atomically. Another gang may write the same file and delete this one's partial file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}")  # a pid is the same in all containers
    try:
        partial.write_bytes(safetensors.numpy.save({_TENSOR: inner}))
        store.sync(partial)
        with contextlib.suppress(FileNotFoundError):
            partial.replace(place)
    finally:
        for rubbish in place.parent.glob(f".{place.name}.*"):
            rubbish.unlink(missing_ok=True)


def _spread(found: Components | None, reader: Reader | None, shape: Shape, communicator: Communicator) -> Basis:
    """Distribute P: return this rank's columns, zero-padded to equal width; the leader reads each column once."""
    width, rank = subspace.width(shape.numbers, communicator.size), communicator.rank
    columns, own = np.zeros((shape.components, width), np.float32), communicator.leader * width
    for begin in range(0, shape.numbers, SENT):
        end = min(begin + SENT, shape.numbers)
        if found is not None and reader is not None:
            sent = gram.basis(found, reader.read, begin, end)
        else:
            sent = np.zeros((shape.components, end - begin), np.float32)
        if not own <= begin < end <= own + width:  # columns of the leader alone are not sent
            sent = communicator.broadcast(sent)
        first, last = max(begin, rank * width), min(end, (rank + 1) * width)
        if first < last:
            columns[:, first - rank * width : last - rank * width] = sent[:, first - begin : last - begin]
    share = np.array([0.0 if found is None else found.share.sum()], np.float32)
    return Basis(columns, shape.numbers, float(communicator.broadcast(share)[0]))
