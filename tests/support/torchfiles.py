"""Files in torch.save's format, made without torch; and malicious ones, for tests of refusals."""

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {"float32": "FloatStorage", "float16": "HalfStorage", "float64": "DoubleStorage", "int64": "LongStorage"}

EMPTY_DICT, MARK, SETITEMS, STOP, REDUCE, BINPERSID = b"}", b"(", b"u", b".", b"R", b"Q"


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def named(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def tuple_(items: Sequence[bytes]) -> bytes:
    return MARK + b"".join(items) + b"t"


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    return tuple_([text("storage"), named("torch", kind), text(key), text("cpu"), number(count)]) + BINPERSID


def tensor(stored: bytes, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> bytes:
    hooks = named("collections", "OrderedDict") + b")" + REDUCE
    arguments = [stored, number(offset), tuple_(list(map(number, shape))), tuple_(list(map(number, strides)))]
    return named("torch._utils", "_rebuild_tensor_v2") + tuple_([*arguments, b"\x89", hooks]) + REDUCE


def dictionary(items: Mapping[str, bytes]) -> bytes:
    return EMPTY_DICT + MARK + b"".join(text(key) + value for key, value in items.items()) + SETITEMS


def pickled(value: bytes) -> bytes:
    return b"\x80\x02" + value + STOP


def archive(pickle: bytes, storages: Mapping[str, bytes], root: str = "archive", **entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr(f"{root}/data.pkl", pickle)
        for key, data in storages.items():
            written.writestr(f"{root}/data/{key}", data)
        for name, data in entries.items():
            written.writestr(f"{root}/{name}", data)
    return file.getvalue()


def state_dict(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A file that torch.load reads as a dict of these tensors."""
    items, storages = {}, {}
    for key, (name, array) in enumerate(arrays.items()):
        strides = [stride // array.itemsize for stride in np.ascontiguousarray(array).strides] if array.ndim else []
        stored = storage(str(key), array.size, KINDS[array.dtype.name])
        items[name] = tensor(stored, array.shape, strides)
        storages[str(key)] = array.tobytes()
    return archive(pickled(dictionary(items)), storages)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
