"""What a data set on this machine says about the job that is to train on it; it reads labels, and judges no image.

Only what is read at once: the labels of an .npz file, the list of classes beside MindRecord files. What cannot be read
is left to the trainer, which says why.
"""

import array
import ast
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from resnetboost_operator.validation import notes

_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_MOST_BYTES = 1 << 28  # of labels
_MOST_NAMES_BYTES = 1 << 18
_HEADER = 10  # bytes of an .npy file of version 1.0 before its header: a magic number, the version, a length


def of(spec: Mapping[str, Any]) -> Iterator[str]:
    """Notes on a defaulted spec beside the data that it names, if that lies on this machine."""
    dataset = spec["dataset"]
    if "path" not in dataset:
        return
    path = Path(dataset["path"]).expanduser()
    try:
        found = _labels(path) if dataset["name"] == "npz" else _names(path) if dataset["name"] == "MindRecord" else 0
    except Exception:  # a file of anything: zipfile alone raises a dozen kinds
        return
    if found:
        yield from notes.of_classes(spec["model"]["numClasses"], found, f"{path} has")


def _names(folder: Path) -> int:
    """How many classes `resnetboost data to-mindrecord` has listed there."""
    with (folder / "classes.txt").open("rb") as file:
        data = file.read(_MOST_NAMES_BYTES + 1)
    whole = len(data) <= _MOST_NAMES_BYTES
    return sum(bool(line.strip()) for line in data.splitlines()) if whole else 0


def _labels(path: Path) -> int:
    """One more than the highest label."""
    with zipfile.ZipFile(path) as archive:
        return 1 + max(_highest(archive, name) for name in ("y_train.npy", "y_test.npy"))


def _highest(archive: zipfile.ZipFile, name: str) -> int:
    if archive.getinfo(name).file_size > _MOST_BYTES:
        raise ValueError("more labels than are worth a note")
    data = archive.read(name)
    begin = _HEADER + int.from_bytes(data[_HEADER - 2 : _HEADER], "little")
    kind = ast.literal_eval(data[_HEADER:begin].decode("latin-1"))["descr"]
    labels = array.array(_CODES[kind[1:]], data[begin:])
    if kind[0] == (">" if sys.byteorder == "little" else "<"):
        labels.byteswap()
    return max(labels)
