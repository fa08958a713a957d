"""Reads and writes files of weights: safetensors in our names or PyTorch's, and what torch.save wrote, only to read.

What is in a file says what it is, never its name. All of it is untrusted: it becomes plain numbers, or a refusal.
"""

import hashlib
import logging
import re
import stat
from collections.abc import Iterator, Mapping
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
from resnetboost_trainer.checkpoint.store import Damaged, Manifest
from resnetboost_trainer.data import read_errors

Array = NDArray[Any]
# BN's words: MindSpore's gamma and moving_mean, or PyTorch's weight and running_mean.
Layout = Literal["resnetboost", "torch"]

# ResNet-152 has 241 MB of weights.
MAX_BYTES = 2 << 30
MODEL = "model.safetensors"
AVERAGE = "ema.safetensors"  # of a checkpoint whose job keeps an average of the weights
# Checkpoints below an attempt, a stage, a job, a folder of checkpoints, a run or a claim's volume in a run.
_STEPS = "attempt-*/step-*"
_BELOW = ("step-*", _STEPS, f"*/{_STEPS}", f"*/*/{_STEPS}", f"checkpoints/*/*/{_STEPS}", f"volumes/*/*/*/{_STEPS}")

ZIP = b"PK\x03\x04"
OLD_PICKLE = b"\x80"
# Protocol buffers: the first entry with its length, and in it the parameter's name (MindSpore's checkpoint.proto).
MINDSPORE = re.compile(rb"\n[\x80-\xff]*[\x00-\x7f]\n")

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
# A counter that PyTorch's BN has, and nobody reads while BN has a momentum.
COUNTER = "num_batches_tracked"


log = logging.getLogger(__name__)


class File(msgspec.Struct, frozen=True):
    """What a file holds by name, without BN's counters, and the hash of its bytes; `path` is that of the file.

    `of` is the manifest of the checkpoint that the file is part of, if it is.
    """

    arrays: dict[str, Array]
    layout: Layout
    sha256: str
    path: Path
    of: Manifest | None = None


def read(path: Path, expected: str | None = None) -> File:
    """The file that a path means. Raises Refused, also for another one than that of the `expected` hash."""
    file, data = found(path)
    sha256 = hashlib.sha256(data).hexdigest()
    if expected is not None and sha256 != expected:
        raise Refused(f"it is not the file that {store.MANIFEST} tells of")
    arrays = _plain(torch_file.read(data) if data.startswith(ZIP) else _safetensors(data))
    return File(arrays, _layout(arrays), sha256, file, _manifest(file, sha256))


def _manifest(file: Path, sha256: str) -> Manifest | None:
    """What lies beside the file and tells of those bytes."""
    file = file.resolve()
    try:
        manifest = store.told(file.parent)
    except Damaged:
        return None
    return manifest if file.name in manifest.files and manifest.files[file.name].sha256 == sha256 else None


def found(path: Path) -> tuple[Path, bytes]:
    """The file that a path means, with its bytes: itself, or in a folder the model of its newest whole checkpoint.

    Raises Refused for what is missing, unreadable, no plain file or too large, and says what is there.
    """
    if not path.is_dir():
        return path, _contents(path)
    if (path / MODEL).exists():
        return path / MODEL, _contents(path / MODEL)
    for manifest, place in checkpoints(path):
        try:
            data = _contents(place / MODEL)
        except Refused as refused:  # a job that goes on removes what it keeps no longer
            log.warning("%s is passed over: %s: %s", place, MODEL, refused)
            continue
        if MODEL in manifest.files and manifest.files[MODEL].sha256 == hashlib.sha256(data).hexdigest():
            return place / MODEL, data
        log.warning("%s is passed over: %s is not the file that its manifest tells of", place, MODEL)
    raise Refused(f"there is no whole checkpoint in it; {there(path)}")


def checkpoints(folder: Path) -> Iterator[tuple[Manifest, Path]]:
    """Those below a run's folder or any in it, the one that was written last first; their files are to be verified."""
    read = []
    for place in {place for below in _BELOW for place in folder.glob(below)}:
        if not (place / store.MANIFEST).is_file():
            continue
        try:
            read.append((store.told(place), place))
        except Damaged as damage:
            log.warning("%s is passed over: %s", place, damage)
    return iter(sorted(read, key=lambda pair: (pair[0].written, pair[0].step), reverse=True))


def there(folder: Path) -> str:
    """What is in a folder, for somebody who looked for something else there."""
    try:
        return f"{shown(str(folder), 300)} holds {read_errors.listed(folder)}"
    except OSError as error:
        return f"{shown(str(folder), 300)} cannot be read: {error.strerror}"


def _contents(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise Refused("it is no plain file")
        if status.st_size > MAX_BYTES:
            raise Refused(f"it has {status.st_size} bytes, more than {MAX_BYTES}, so it is no ResNet's weights alone")
        return path.read_bytes()
    except FileNotFoundError as error:
        above = next(parent for parent in path.absolute().parents if parent.is_dir())
        raise Refused(f"there is no such file or folder; {there(above)}") from error
    except OSError as error:
        raise Refused(f"it cannot be read: {error.strerror}") from error


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Whole or not at all, as safetensors. Raises OSError."""
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
        if data.startswith(OLD_PICKLE):  # safetensors may begin with that byte, too
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
    except (ValueError, OverflowError) as error:  # no numbers at all, in a shape that NumPy has not
        raise Refused(f"{shown(name)} has a shape that is too large") from error
    return torch_file.widened(numbers, bfloat16=kind == "BF16")


def _plain(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Without BN's counters, and without the prefix that PyTorch's data parallelism puts before every name."""
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
