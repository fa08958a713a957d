"""Reads and writes files of weights: safetensors with our names or PyTorch's; torch.save archives are read only.

The format is detected from the content, never from the file name. Files are untrusted: they yield plain numbers or
raise Refused.
"""

import hashlib
import logging
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from resnetboost_trainer.checkpoint import store
from resnetboost_trainer.checkpoint.formats import torch_file
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused, shown
from resnetboost_trainer.checkpoint.store import Damaged, Kind, Manifest
from resnetboost_trainer.data import read_errors

Array = NDArray[Any]
# Names of BN parameters: MindSpore's gamma and moving_mean, or PyTorch's weight and running_mean.
Layout = Literal["resnetboost", "torch"]

# ResNet-152 has 241 MB of weights.
MAX_BYTES = 2 << 30
MODEL = "model.safetensors"
AVERAGE = "ema.safetensors"  # in checkpoints of jobs that average the weights
# Attempts of an attempt's own folder, a stage, a job, a folder of checkpoints, a run or a claim's volume in a run.
_ATTEMPT = "attempt-*/"
_BELOW = ("", _ATTEMPT, f"*/{_ATTEMPT}", f"*/*/{_ATTEMPT}", f"checkpoints/*/*/{_ATTEMPT}", f"volumes/*/*/*/{_ATTEMPT}")

ZIP = b"PK\x03\x04"
OLD_PICKLE = b"\x80"
# Protocol buffers: the first entry with its length, and in it the parameter's name (MindSpore's checkpoint.proto).
MINDSPORE = re.compile(rb"\n[\x80-\xff]*[\x00-\x7f]\n")

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
# A counter in PyTorch's BN, unused while BN has a momentum.
COUNTER = "num_batches_tracked"


log = logging.getLogger(__name__)


class File(msgspec.Struct, frozen=True):
    """Contents of a weights file: arrays by name, without BN's counters, and the SHA-256 of the file.

    `of` is the manifest of the checkpoint that contains the file, if any.
    """

    arrays: dict[str, Array]
    layout: Layout
    sha256: str
    path: Path
    of: Manifest | None = None


def read(path: Path, expected: str | None = None) -> File:
    """Read the weights file that `found` selects for a path. Raises Refused, also if its hash is not `expected`."""
    file, data = found(path)
    sha256 = hashlib.sha256(data).hexdigest()
    if expected is not None and sha256 != expected:
        raise Refused(f"it is not the file that {store.MANIFEST} lists")
    arrays = _plain(torch_file.read(data) if data.startswith(ZIP) else _safetensors(data))
    return File(arrays, _layout(arrays), sha256, file, _manifest(file, sha256))


def _manifest(file: Path, sha256: str) -> Manifest | None:
    """Return the manifest beside the file if it lists the file with that hash."""
    file = file.resolve()
    try:
        manifest = store.load_manifest(file.parent)
    except Damaged:
        return None
    return manifest if file.name in manifest.files and manifest.files[file.name].sha256 == sha256 else None


def found(path: Path) -> tuple[Path, bytes]:
    """Return a weights file and its bytes: `path` itself, or in a folder the model of its newest intact checkpoint.

    Raises Refused for a path that is missing, unreadable, not a regular file or too large; the message lists what is
    there.
    """
    if not path.is_dir():
        return path, _contents(path)
    if (path / MODEL).exists():
        return path / MODEL, _contents(path / MODEL)
    for manifest, place in checkpoints(path):
        try:
            data = _contents(place / MODEL)
        except Refused as refused:  # a running job prunes its checkpoints meanwhile
            log.warning("%s is skipped: %s: %s", place, MODEL, refused)
            continue
        if MODEL in manifest.files and manifest.files[MODEL].sha256 == hashlib.sha256(data).hexdigest():
            return place / MODEL, data
        log.warning("%s is skipped: %s is not the file that its manifest lists", place, MODEL)
    raise Refused(f"there is no complete checkpoint in it; {there(path)}")


def checkpoints(folder: Path, kind: Kind = "step") -> Iterator[tuple[Manifest, Path]]:
    """List the checkpoints at or below a run's folder, the newest first; their files are not verified."""
    read = []
    for place in {place for below in _BELOW for place in folder.glob(f"{below}{kind}-*")}:
        if not (place / store.MANIFEST).is_file():
            continue
        try:
            read.append((store.load_manifest(place), place))
        except Damaged as damage:
            log.warning("%s is skipped: %s", place, damage)
    return iter(newest_first(read))


def newest_first(places: Iterable[tuple[Manifest, Path]]) -> list[tuple[Manifest, Path]]:
    """Sort by attempt and step within a stage of a job, as clocks may be set back; the last written stage first."""
    places = list(places)
    written: dict[tuple[str, str], float] = {}
    for manifest, _ in places:
        stage = (manifest.job_uid, manifest.stage)
        written[stage] = max(written.get(stage, manifest.written), manifest.written)

    def age(place: tuple[Manifest, Path]) -> tuple[float, str, str, int, int, float]:
        found = place[0]
        stage = (found.job_uid, found.stage)
        return written[stage], *stage, found.attempt, found.step, found.written

    return sorted(places, key=age, reverse=True)


def there(folder: Path) -> str:
    """Describe a folder's content for an error message."""
    try:
        return f"{shown(str(folder), 300)} holds {read_errors.listed(folder)}"
    except OSError as error:
        return f"{shown(str(folder), 300)} cannot be read: {error.strerror}"


def _contents(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block for ever
            raise Refused("it is not a regular file")
        if status.st_size > MAX_BYTES:
            raise Refused(f"it has {status.st_size} bytes, more than {MAX_BYTES}, so it is no ResNet's weights alone")
        return path.read_bytes()
    except FileNotFoundError as error:
        above = next(parent for parent in path.absolute().parents if parent.is_dir())
        raise Refused(f"there is no such file or folder; {there(above)}") from error
    except OSError as error:
        raise Refused(f"it cannot be read: {error.strerror}") from error


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a safetensors file atomically. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        partial.write_bytes(safetensors.numpy.save(ordered, metadata={"format": "pt"}))
        store.sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _safetensors(data: bytes) -> dict[str, Array]:
    try:
        entries: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        if data.startswith(OLD_PICKLE):  # checked after safetensors, which may begin with the same byte
            reason = "it is a bare pickle, as torch.save wrote before PyTorch 1.6; save it again with a newer one"
            raise Refused(reason) from error
        if MINDSPORE.match(data):
            reason = "MindSpore checkpoints are not read; docs/weights.md says how to make safetensors of one"
            raise Refused(reason) from error
        reason = (
            f"it is neither safetensors nor a zip archive of torch.save: {shown(' '.join(str(error).split()), 300)}"
        )
        raise Refused(reason) from error
    return {name: _numbers(name, entry) for name, entry in entries}


def _numbers(name: str, entry: Mapping[str, Any]) -> Array:
    kind = entry["dtype"]
    if kind not in _TYPES:
        raise Refused(f"{shown(name)} is of type {kind}; use one of {', '.join(_TYPES)}")
    try:
        numbers = np.frombuffer(entry["data"], _TYPES[kind]).reshape(entry["shape"])
    except (ValueError, OverflowError) as error:  # an empty array whose shape NumPy cannot represent
        raise Refused(f"{shown(name)} has a shape that is too large") from error
    return torch_file.widened(numbers, bfloat16=kind == "BF16")


def _plain(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Drop BN's counters and the `module.` prefix of PyTorch's data parallelism, and convert to float32."""
    prefix = "module." if arrays and all(name.startswith("module.") for name in arrays) else ""
    kept = {name.removeprefix(prefix): array for name, array in arrays.items() if not name.endswith(f".{COUNTER}")}
    for name, array in kept.items():
        if array.dtype not in (np.float32, np.float64):
            raise Refused(f"{shown(name)} holds {array.dtype} instead of floating point numbers")
    return {name: array.astype(np.float32, copy=False) for name, array in kept.items()}


def _layout(arrays: Mapping[str, Array]) -> Layout:
    ours = any(name.endswith(".moving_mean") for name in arrays)
    theirs = any(name.endswith(".running_mean") for name in arrays)
    if ours == theirs:
        found = "both moving_mean and running_mean" if ours else "neither moving_mean nor running_mean"
        raise Refused(f"its batch norms have {found}, so it is no ResNet of ours nor of PyTorch's")
    return "resnetboost" if ours else "torch"
