"""Checkpoint storage on disk: atomic writes, verification by hash, and pruning.

`<root>/<job uid>/<stage>/attempt-<n>/step-<8 digits or more>/` contains safetensors files and, written last,
`manifest.json` with their sizes and hashes; the directory is renamed to its final name once everything is on disk. An
attempt writes only under its own directory, so a stale gang behind a broken network cannot damage its successor's
files. Best checkpoints and snapshots are stored the same way, with their kind in place of `step`.
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

from resnetboost_api import wording
from resnetboost_api.status import EarlyStop
from resnetboost_trainer.checkpoint.evaluations import BestMark, History
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.data.rng import BY_SEED_ALONE

Arrays = Mapping[str, npt.NDArray[np.float32]]
# A checkpoint; one of the best (best.py); a stage's snapshot; another job's snapshot, adopted by the PCA stage that
# trains in its subspace.
Kind = Literal["step", "best", "snapshot", "origin"]

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT_BYTES = 1 << 20
_PLACES = {kind: re.compile(rf"{kind}-(\d{{8}}|[1-9]\d{{8,17}})") for kind in get_args(Kind)}
_ATTEMPT = re.compile(r"attempt-(\d+)")

_LEVELS = 3  # of folders above an attempt's: the stage's, the job's and the root

log = logging.getLogger(__name__)


class File(msgspec.Struct, frozen=True):
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A checkpoint's manifest: its job, position in training, settings, versions and files.

    Random numbers are counter-based: seed, lineage, step and batch sizes determine them and the data order completely
    (data/rng.py). Old checkpoints without a job namespace and name are found by uid only. `written` is in Unix seconds.
    `world_size` is the number of virtual ranks, which the training is defined by; `ranks` is that of the gang, 0 if the
    checkpoint is older than this field. `layout` describes a snapshot's flat vector; `basis` identifies the subspace of
    a PCA state; `weights` is the fingerprint of the file that the run's first weights came from; `teacher` is the hash
    of the weights that it learns from, if it does. The step after this
    one takes the batch `step + skipped_batches` of the data order: roll-backs skip some. `best` is that of a best
    checkpoint; `history` has the evaluations that `stopWhen` looks at, and `stopped_early` how they ended the stage."""

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
    ranks: int = 0
    local_batch_size: int
    model: str
    dataset: str
    algorithm: str = "Momentum"  # the only one before this field existed
    layout: str = ""
    basis: str = ""
    weights: str = ""
    teacher: str = ""
    skipped_batches: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    preparation: Preparation | None = None
    best: BestMark | None = None
    history: History | None = None
    stopped_early: EarlyStop | None = None
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    written: float = 0.0
    files: dict[str, File] = {}

    @property
    def micro_batches(self) -> int | None:
        """Micro batches per rank and step; None if an old checkpoint does not record them."""
        found = self.config.get("accumulationSteps")
        return found if isinstance(found, int) else None


# Whether a checkpoint of (step, attempt) may be used.
Usable = Callable[[int, int], bool]

# Writes files to a directory and syncs them to disk.
Fill = Callable[[Path], dict[str, File]]


class Found(msgspec.Struct, frozen=True):
    """A verified checkpoint; `contents` is empty if only its manifest was requested."""

    path: Path
    manifest: Manifest
    contents: dict[str, dict[str, npt.NDArray[np.float32]]]


class Damaged(Exception):
    """A checkpoint is unusable; the message says why, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(wording.sentence(message))


def attempt_directory(root: Path, job_uid: str, stage: str, attempt: int) -> Path:
    """Return the directory that only this attempt writes to."""
    return root / job_uid / stage / f"attempt-{attempt}"


def write(directory: Path, manifest: Manifest, contents: Mapping[str, Arrays], kind: Kind = "step") -> tuple[Path, int]:
    """Write a checkpoint under an attempt's directory; return its path and size in bytes.

    Safe against a crash at any point: a directory without its final name is not a checkpoint. Raises OSError.
    """

    def fill(partial: Path) -> dict[str, File]:
        encoded = ((name, safetensors.numpy.save(dict(arrays))) for name, arrays in contents.items())
        return {name: _write_file(partial / name, data) for name, data in encoded}

    return write_files(directory, manifest, fill, kind)


def write_files(directory: Path, manifest: Manifest, fill: Fill, kind: Kind) -> tuple[Path, int]:
    """Like `write`, for files that `fill(directory)` writes and syncs to disk."""
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
        # Its folder may be new, and those above: their entries must be on disk too, before older ones are deleted.
        for folder in (directory, *directory.parents[:_LEVELS]):
            sync(folder)
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


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the volume has no links. Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # many network volumes have no links
        shutil.copyfile(source, target, follow_symlinks=False)
        sync(target)


def sync(path: Path) -> None:
    """Flush a file, or a directory's entries, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def every(step: int, attempt: int) -> bool:
    """Use every checkpoint."""
    return True


def candidates(
    root: Path,
    job_uid: str,
    stage: str,
    before_attempt: float = math.inf,
    kind: Kind = "step",
    usable: Usable = every,
) -> list[Path]:
    """List a stage's checkpoints by attempts before `before_attempt`: furthest step first, then latest attempt.

    Only those of which `usable(step, attempt)` is true. Raises OSError.
    """
    found = []
    for attempt, directory in _numbered(root / job_uid / stage, _ATTEMPT):
        if attempt < before_attempt:
            numbered = _numbered(directory, _PLACES[kind])
            found += [(step, attempt, path) for step, path in numbered if usable(step, attempt)]
    return [path for _, _, path in sorted(found, reverse=True)]


def place_of(path: Path, kind: Kind) -> tuple[int, int] | None:
    """Step and attempt that a checkpoint's path names; None if it is none of that kind."""
    step, attempt = _PLACES[kind].fullmatch(path.name), _ATTEMPT.fullmatch(path.parent.name)
    return (int(step[1]), int(attempt[1])) if step and attempt else None


def _numbered(directory: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    """Yield (number, path) of the subfolders that match `pattern`; none if the directory is missing or a file.

    Symbolic links are not followed.
    """
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
    usable: Usable = every,
) -> Found | None:
    """Read the furthest intact checkpoint that has the needed files; log damaged ones and skip them.

    Without `arrays`, `contents` is empty. `usable` as in `candidates`. The directory is listed again after each damaged
    checkpoint, since a stale gang may prune checkpoints during the read and write newer ones.
    """
    passed_over: set[Path] = set()
    while left := [
        path for path in candidates(root, job_uid, stage, before_attempt, usable=usable) if path not in passed_over
    ]:
        path = left[0]
        try:
            manifest = verify(path, needed)
            return Found(path, manifest, {name: read(path, name) for name in manifest.files if arrays})
        except Damaged as damage:
            passed_over.add(path)
            log.warning("checkpoint %s is damaged (%s); trying another", path, damage)
    return None


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest and check that it names this path; does not verify the files. Raises Damaged."""
    manifest = load_manifest(path)
    check_place(path, manifest)
    return manifest


def check_place(path: Path, manifest: Manifest) -> None:
    """Check that a manifest names the path it was found at. Raises Damaged."""
    place = attempt_directory(path.parents[3], manifest.job_uid, manifest.stage, manifest.attempt)
    if path not in [place / f"{kind}-{manifest.step:08d}" for kind in _PLACES]:
        named = f"step {manifest.step}, attempt {manifest.attempt}, stage {manifest.stage[:40]!r}"
        raise Damaged(f"{MANIFEST}: it is of {named}")


def load_manifest(path: Path) -> Manifest:
    """Read the manifest in a folder, which may have been moved: its path is not checked. Raises Damaged."""
    try:
        return decoded(_read_limited(path / MANIFEST, MANIFEST_LIMIT_BYTES))
    except OSError as error:
        raise Damaged(f"{MANIFEST}: {error}") from error


def decoded(encoded: bytes) -> Manifest:
    """Decode a manifest. Raises Damaged."""
    try:
        manifest = msgspec.json.decode(encoded, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # not JSON, not text, or nested beyond reason
        raise Damaged(f"{MANIFEST}: {error}") from error
    if manifest.format != FORMAT:
        raise Damaged(f"{MANIFEST}: format {manifest.format} is not {FORMAT}, the one this trainer reads")
    return manifest


def verify(path: Path, needed: Sequence[str] = ()) -> Manifest:
    """Read a checkpoint's manifest and check the size and hash of every file. Raises Damaged."""
    manifest = read_manifest(path)
    for name in needed:
        if name not in manifest.files:
            raise Damaged(f"{MANIFEST}: it lists no {name}")
    verify_files(path, manifest)
    return manifest


def verify_files(path: Path, manifest: Manifest) -> None:
    """Check the size and hash of every file that a manifest lists. Raises Damaged."""
    for name, expected in manifest.files.items():
        if Path(name).name != name:
            raise Damaged(f"{MANIFEST}: {name!r} is not a plain file name")
        _verify_file(path / name, expected)


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
    """Return a regular file's size in bytes. Raises Damaged for a pipe, which would block, or a link; OSError."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.name}: it is not a regular file")
    return status.st_size


def _read_limited(path: Path, limit: int) -> bytes:
    if _plain_size(path) > limit:
        raise Damaged(f"{path.name}: larger than {limit} bytes")
    with path.open("rb") as file:
        return file.read(limit)


def read(path: Path, name: str) -> dict[str, npt.NDArray[np.float32]]:
    """Read one file of a verified checkpoint. Raises Damaged."""
    try:
        arrays: dict[str, npt.NDArray[np.float32]] = safetensors.numpy.load_file(path / name)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{name}: {error}") from error
    return arrays


def prune(
    root: Path,
    job_uid: str,
    stage: str,
    attempt: int,
    keep: int,
    written: Path,
    back_steps: int | None = None,
    usable: Usable = every,
) -> None:
    """Delete all but `keep` checkpoints of this and older attempts: `written` (the newest) and the furthest others.

    A checkpoint further than the newest was skipped as damaged when this attempt started: it must not displace it.
    With `back_steps`, one that is at least so many steps before the next step stays too. Those that are not `usable`
    are of a branch that was abandoned: none of them stays.
    """
    left = candidates(root, job_uid, stage, attempt + 1, usable=usable)
    stay = kept(left, keep, written, back_steps)
    remove([path for path in candidates(root, job_uid, stage, attempt + 1) if path not in stay])
    sweep(root, job_uid, stage, attempt)


def kept(usable: Sequence[Path], keep: int, written: Path, back_steps: int | None) -> set[Path]:
    """Of the usable checkpoints, furthest first, those that `prune` keeps."""
    stay = {written, *[path for path in usable if path != written][: keep - 1]}
    return stay if back_steps is None else stay | set(_old(usable, step_of(written) + 1 - back_steps))


def _old(paths: Sequence[Path], at_most: int) -> list[Path]:
    """The furthest checkpoint up to that step, and the next one after it, which will replace it.

    Without the second one, the first would stay for ever where the newest `keep` span fewer steps than that.
    """
    old = [path for path in paths if step_of(path) <= at_most][:1]
    return old + [path for path in paths if step_of(path) > at_most][-1:]


def step_of(path: Path) -> int:
    """The step that a checkpoint's folder names."""
    return int(path.name.rpartition("-")[2])


def sweep(root: Path, job_uid: str, stage: str, attempt: int) -> None:
    """Delete partial files of killed writers in the folders of this and older attempts, of all kinds."""
    for number, directory in _numbered(root / job_uid / stage, _ATTEMPT):
        if number <= attempt:
            for kind in _PLACES:
                for rubbish in directory.glob(f".{kind}-*"):
                    shutil.rmtree(rubbish, ignore_errors=True)


def remove(paths: Sequence[Path]) -> None:
    """Delete checkpoints, renaming them first: a half-deleted checkpoint must not look like a damaged one."""
    for path in paths:
        condemned = path.with_name(f".{path.name}.deleted")
        try:
            path.rename(condemned)
        except FileNotFoundError:
            continue  # a stale gang may have pruned it
        shutil.rmtree(condemned, ignore_errors=True)
