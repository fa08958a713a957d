"""Reads the tensors of a .pth file of torch.save: a zip archive of one pickle and one entry of numbers per storage.

Nothing is unpacked to disk, and entry names are only compared. Entries must be stored uncompressed, as torch.save
writes them, so no more than the file's size is read.
"""

import io
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint.formats import torch_pickle
from resnetboost_trainer.checkpoint.formats.torch_pickle import REMEDY, Lazy, Refused, Storage

Array = NDArray[Any]

MAX_PICKLE_BYTES = 64 << 20
MAX_ENTRIES = 100_000
_ENTRY = b"PK\x01\x02"  # begins each entry's line of the archive's directory
# Keys under which training scripts save the state dict beside other things, in order of preference.
NESTED = ("state_dict", "model", "model_state_dict")
MAX_NESTING = 3


def read(data: bytes) -> dict[str, Array]:
    """Return the tensors in a file's contents by name; float16 and bfloat16 become float32. Raises Refused."""
    if data.count(_ENTRY) > MAX_ENTRIES:  # check first: zipfile allocates about a kilobyte per entry
        raise Refused(f"it has more than {MAX_ENTRIES} entries; use a file of one network")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _Archive(archive, len(data)).state()
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        OSError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:
        raise Refused(f"it is no whole zip archive of torch.save: {' '.join(str(error).split())}") from error


class _Archive:
    """Entries of a zip archive by name within its folder; reads each storage once."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self.archive, self.size = archive, size
        entries = archive.infolist()
        roots = {entry.filename.removesuffix("/data.pkl") for entry in entries if _is_pickle(entry.filename)}
        if len(roots) != 1:
            raise Refused(f"it has {len(roots)} pickles instead of one data.pkl in a folder, as torch.save writes it")
        (root,) = roots
        self.entries = {entry.filename.removeprefix(f"{root}/"): entry for entry in entries}
        if len(self.entries) != len(entries):
            raise Refused("two of its entries have the same name")
        if sum(entry.file_size for entry in entries) > size:
            raise Refused("its entries say to be larger than the file")
        self.storages: dict[str, bytes] = {}  # by key: several tensors may share a storage

    def state(self) -> dict[str, Array]:
        if "byteorder" in self.entries and self._entry("byteorder", 16) != b"little":
            raise Refused("its numbers are big-endian; save it again on a little-endian machine")
        found = _state_dict(torch_pickle.load(self._entry("data.pkl", MAX_PICKLE_BYTES)))
        needed = sum(
            torch_pickle.size(tensor) * torch_pickle.dtype(tensor.storage).itemsize for tensor in found.values()
        )
        if needed > self.size:
            raise Refused(f"its tensors have {needed} bytes, more than the file; save them without sharing numbers")
        return {name: self._tensor(tensor) for name, tensor in found.items()}

    def _entry(self, name: str, limit: int) -> bytes:
        if name not in self.entries:
            raise Refused(f"it has no entry {name}")
        entry = self.entries[name]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise Refused(f"its entry {name} is compressed, which torch.save never does")
        if entry.file_size > limit:
            raise Refused(f"its entry {name} has {entry.file_size} bytes instead of at most {limit}")
        return self.archive.read(entry)

    def _tensor(self, tensor: Lazy) -> Array:
        numbers = self._storage(tensor.storage)[tensor.offset :]
        strides = [stride * numbers.itemsize for stride in tensor.strides]
        # `torch_pickle` has checked that the tensor lies within its storage.
        own = np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False).copy()
        return widened(own, bfloat16=tensor.storage.kind == "BFloat16Storage")

    def _storage(self, storage: Storage) -> Array:
        if storage.key not in self.storages:
            self.storages[storage.key] = self._entry(f"data/{storage.key}", self.size)
        data, expected = self.storages[storage.key], storage.numbers * torch_pickle.dtype(storage).itemsize
        if len(data) < expected:
            raise Refused(f"its storage {storage.key} has {len(data)} bytes instead of {expected}")
        return np.frombuffer(data, torch_pickle.dtype(storage), storage.numbers)


def _is_pickle(name: str) -> bool:
    return name.endswith("/data.pkl") and name.count("/") == 1


def widened(numbers: Array, bfloat16: bool) -> Array:
    """Convert float16 and bfloat16 (as uint16 bits) to float32, which is exact; return other types unchanged."""
    if bfloat16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers


def _state_dict(found: Any, depth: int = 0) -> dict[str, Lazy]:
    """Find the state dict: the saved object itself, or a value under one of the `NESTED` keys."""
    if isinstance(found, dict):
        if found and all(isinstance(key, str) and isinstance(value, Lazy) for key, value in found.items()):
            return found
        for key in NESTED:
            if key in found and depth < MAX_NESTING:
                return _state_dict(found[key], depth + 1)
    raise Refused(f"it holds no state dict; {REMEDY}")
