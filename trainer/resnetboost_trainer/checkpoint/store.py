"""Checkpoints on disk: written whole or not at all, verified before use, pruned; their contents are the caller's.

`<root>/<job uid>/<stage>/attempt-<n>/step-<8 digits or more>/` holds safetensors files and, written last,
`manifest.json` with their sizes and hashes; the directory gets its name by a rename after everything is on disk. An
attempt writes only under its own directory, so a stale gang that lives on behind a broken network cannot harm its
successor. What is kept beside checkpoints, in the same way, is of another kind and has another name in the place of
`step`.
"""

import hashlib
import logging
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.data.rng import BY_SEED_ALONE

Arrays = Mapping[str, npt.NDArray[np.float32]]
# A checkpoint; a stage's snapshot; a snapshot of another job, in the stage that trains in their subspace.
Kind = Literal["step", "snapshot", "origin"]

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT_BYTES = 1 << 20
_PLACES = {kind: re.compile(rf"{kind}-(\d{{8}}|[1-9]\d{{8,17}})") for kind in get_args(Kind)}
_ATTEMPT = re.compile(r"attempt-(\d+)")

log = logging.getLogger(__name__)


class File(msgspec.Struct, frozen=True):
    """Size and hash of one file."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a checkpoint is of. Randomness is counter-based (a function of seed, lineage and position), so that these,
    step and batch sizes are the whole state of the random number generators and of the data order: data/rng.py.

    A checkpoint without its job's namespace and name, as they were written once, is found by its uid alone. `written`
    is in unix seconds. `layout` is of a snapshot's flat vector; `basis` tells in which subspace a state is one;
    `weights` is the fingerprint of the file that the run's first weights came from."""

    format: int = FORMAT
    job_uid: str
    job_namespace: str = ""
    job_name: str = ""
    stage: str
    attempt: int
    step: int
    steps_per_epoch: int
    seed: int
    lineage: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = BY_SEED_ALONE
    world_size: int
    local_batch_size: int
    model: str
    dataset: str
    algorithm: str = "Momentum"  # there was no other when this field was not written
    layout: str = ""
    basis: str = ""
    weights: str = ""
    preparation: Preparation | None = None
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    written: float = 0.0
    files: dict[str, File] = {}

    @property
    def micro_batches(self) -> int | None:
        """How many of them each rank took for a step; None in a checkpoint from before this was kept."""
        found = self.config.get("accumulationSteps")
        return found if isinstance(found, int) else None


# Brings files into a directory, and onto the disk.
Fill = Callable[[Path], dict[str, File]]


class Found(msgspec.Struct, frozen=True):
    """A checkpoint that was verified and, unless only its manifest was wanted, read."""

    path: Path
    manifest: Manifest
    contents: dict[str, dict[str, npt.NDArray[np.float32]]]


class Damaged(Exception):
    """Why a checkpoint cannot be used."""


def attempt_directory(root: Path, job_uid: str, stage: str, attempt: int) -> Path:
    """Where an attempt writes, and nobody else."""
    return root / job_uid / stage / f"attempt-{attempt}"


def write(directory: Path, manifest: Manifest, contents: Mapping[str, Arrays], kind: Kind = "step") -> tuple[Path, int]:
    """Write a checkpoint under an attempt's directory; returns its path and size in bytes.

    Safe against a crash at any point: what has no final name is not a checkpoint. Raises OSError.
    """

    def fill(partial: Path) -> dict[str, File]:
        encoded = ((name, safetensors.numpy.save(dict(arrays))) for name, arrays in contents.items())
        return {name: _write_file(partial / name, data) for name, data in encoded}

    return write_files(directory, manifest, fill, kind)


def write_files(directory: Path, manifest: Manifest, fill: Fill, kind: Kind) -> tuple[Path, int]:
    """As `write`, of files that `fill` brings, on disk, into the directory it is given."""
    final = directory / f"{kind}-{manifest.step:08d}"
    partial = directory / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        files = fill(partial)
        complete = msgspec.structs.replace(manifest, files=files, written=time.time())
        _write_file(partial / MANIFEST, msgspec.json.format(msgspec.json.encode(complete)))
        sync(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        sync(directory)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final, sum(file.bytes for file in files.values())


def _write_file(path: Path, data: bytes) -> File:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return File(len(data), hashlib.sha256(data).hexdigest())


def sync(path: Path) -> None:
    """Bring a file or the names in a directory onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def candidates(
    root: Path, job_uid: str, stage: str, before_attempt: float = math.inf, kind: Kind = "step"
) -> list[Path]:
    """Checkpoints of a stage by attempts before that one, the furthest step first, then the latest attempt.

    Raises OSError.
    """
    found = []
    for attempt, directory in _numbered(root / job_uid / stage, _ATTEMPT):
        if attempt < before_attempt:
            found += [(step, attempt, path) for step, path in _numbered(directory, _PLACES[kind])]
    return [path for _, _, path in sorted(found, reverse=True)]


def _numbered(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    """Folders of such a name; there may be none, or no directory. Links are not followed."""
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if match and entry.is_dir(follow_symlinks=False):
                yield int(match[1]), directory / entry.name


def newest(
    root: Path,
    job_uid: str,
    stage: str,
    needed: Sequence[str],
    before_attempt: float = math.inf,
    arrays: bool = True,
) -> Found | None:
    """The furthest checkpoint that is whole and has the needed files, read; damaged ones are named and passed over.

    Without `arrays` it is the very same one, with nothing in its contents.

    It looks again after each of them: a stale gang that lives on prunes what is being read, and writes newer ones.
    """
    passed_over: set[Path] = set()
    while left := [path for path in candidates(root, job_uid, stage, before_attempt) if path not in passed_over]:
        path = left[0]
        try:
            manifest = verify(path, needed)
            return Found(path, manifest, {name: read(path, name) for name in manifest.files if arrays})
        except Damaged as damage:
            passed_over.add(path)
            log.warning("checkpoint %s is damaged (%s); trying another", path, damage)
    return None


def read_manifest(path: Path) -> Manifest:
    """What the checkpoint in that place says it is; its files remain to be verified. Raises Damaged."""
    manifest = told(path)
    place = attempt_directory(path.parents[3], manifest.job_uid, manifest.stage, manifest.attempt)
    if path not in [place / f"{kind}-{manifest.step:08d}" for kind in _PLACES]:
        raise Damaged(f"{MANIFEST}: it is of step {manifest.step}, attempt {manifest.attempt}, stage {manifest.stage}")
    return manifest


def told(path: Path) -> Manifest:
    """What the manifest of a checkpoint's folder says, wherever that was moved. Raises Damaged."""
    try:
        encoded = _read_limited(path / MANIFEST, MANIFEST_LIMIT_BYTES)
        manifest = msgspec.json.decode(encoded, type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(f"{MANIFEST}: {error}") from error
    if manifest.format != FORMAT:
        raise Damaged(f"{MANIFEST}: format {manifest.format} is not {FORMAT}, the one this trainer reads")
    return manifest


def verify(path: Path, needed: Sequence[str] = ()) -> Manifest:
    """Read a checkpoint's manifest and hold every file against it. Raises Damaged."""
    manifest = read_manifest(path)
    for name in needed:
        if name not in manifest.files:
            raise Damaged(f"{MANIFEST}: it lists no {name}")
    for name, expected in manifest.files.items():
        if Path(name).name != name:
            raise Damaged(f"{MANIFEST}: {name!r} is not a plain file name")
        _verify_file(path / name, expected)
    return manifest


def _verify_file(path: Path, expected: File) -> None:
    try:
        size = _plain_size(path)
        if size != expected.bytes:
            raise Damaged(f"{path.name}: {size} bytes instead of {expected.bytes}")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Damaged(f"{path.name}: {error.strerror}") from error
    if digest != expected.sha256:
        raise Damaged(f"{path.name}: its contents have changed since it was written")


def _plain_size(path: Path) -> int:
    """Size in bytes; opening a pipe would wait for ever, and a link may lead anywhere. Raises Damaged, OSError."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.name}: it is no plain file")
    return status.st_size


def _read_limited(path: Path, limit: int) -> bytes:
    if _plain_size(path) > limit:
        raise Damaged(f"{path.name}: larger than {limit} bytes")
    with path.open("rb") as file:
        return file.read(limit)


def read(path: Path, name: str) -> dict[str, npt.NDArray[np.float32]]:
    """One file of a verified checkpoint. Raises Damaged."""
    try:
        arrays: dict[str, npt.NDArray[np.float32]] = safetensors.numpy.load_file(path / name)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{name}: {error}") from error
    return arrays


def prune(root: Path, job_uid: str, stage: str, attempt: int, keep: int, written: Path) -> None:
    """Keep `written`, the newest, and the furthest others up to `keep`, among this attempt's and older ones'.

    What lies further than the newest was passed over as damaged when this attempt began: it must not displace it.
    """
    others = [path for path in candidates(root, job_uid, stage, attempt + 1) if path != written]
    remove(others[keep - 1 :])
    sweep(root, job_uid, stage, attempt)


def sweep(root: Path, job_uid: str, stage: str, attempt: int) -> None:
    """Remove what writers that were killed left in this attempt's folder and older ones', of all kinds."""
    for number, directory in _numbered(root / job_uid / stage, _ATTEMPT):
        if number <= attempt:
            for kind in _PLACES:
                for rubbish in directory.glob(f".{kind}-*"):
                    shutil.rmtree(rubbish, ignore_errors=True)


def remove(paths: Sequence[Path]) -> None:
    """Out of sight first: a half-deleted checkpoint must not look like a damaged one."""
    for path in paths:
        condemned = path.with_name(f".{path.name}.deleted")
        try:
            path.rename(condemned)
        except FileNotFoundError:
            continue  # a stale gang that lives on may prune the same ones
        shutil.rmtree(condemned, ignore_errors=True)
