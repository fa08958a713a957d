"""What a compiled graph depends on, as digests: only a graph of the same one may take its place.

MindSpore's own compile cache (2.10) checks only the files that the script imports, and not those of an installed
package. So everything that may come into a graph is part of the key: code, versions, the stage's configuration, and of
a cell its structure, its constants and the shapes it is called with. Of weights only the names are part of it.
"""

import functools
import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.ops import Primitive

from resnetboost_trainer.config import Config
from resnetboost_trainer.kernels import library

# Of the configuration, what differs between attempts of a stage or says nothing of its graphs.
ELSEWHERE = {"job", "attempt", "checkpoint"}

# Variables of MindSpore that say how graphs are compiled; the others differ from start to start.
VARIABLES = ("MS_DEV_", "MS_ENABLE_", "MS_JIT")


def environment(config: Config, world_size: int) -> str:
    """Digest of what all graphs of a stage depend on."""
    settings = {name: value for name, value in msgspec.to_builtins(config).items() if name not in ELSEWHERE}
    pieces = [
        mindspore.__version__,
        platform.python_version(),
        platform.machine(),
        _code(),
        f"{library.FILE} {library.digest()}",
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)),
        str(world_size),
        msgspec.json.encode(settings, order="sorted").decode(),
    ]
    return _digest(pieces)


def of_cell(part: str, cell: nn.Cell, arguments: Sequence[Any]) -> str:
    """Digest of what the graph of a cell, called with such arguments, depends on beside the environment.

    `part` distinguishes it from other cells of the program, which may differ in functions alone; no digest shows those.
    """
    return _digest([part, *_described(list(arguments), by_value=False), *_structure(cell)])


def _digest(pieces: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(f"{len(piece)} {piece}\n".encode())
    return digest.hexdigest()


@functools.cache
def _code() -> str:
    """Digest of the trainer's own sources."""
    root = Path(__file__).parents[1]
    return _digest([f"{path.relative_to(root)} {path.read_text()}" for path in sorted(root.rglob("*.py"))])


@functools.cache
def _own_to_cells() -> frozenset[str]:
    """What every cell has, names and counters of MindSpore's; all else is an attribute of the network's author."""
    return frozenset(vars(nn.Cell()))


def _structure(cell: nn.Cell) -> Iterator[str]:
    for name, part in cell.cells_and_names():
        yield f"{name} {_type(part)} {part.training} {part.mixed_precision_type}"
        for attribute, value in sorted(vars(part).items()):
            if attribute not in _own_to_cells() and not attribute.startswith("_cell_init"):
                yield attribute
                yield from _described(value)
    for parameter in cell.get_parameters():
        yield from _described(parameter)


def _described(value: Any, by_value: bool = True) -> Iterator[str]:
    """Describe a value; a tensor with its numbers, since it becomes a constant of the graph, unlike a parameter."""
    if isinstance(value, Parameter):
        yield f"{value.name} {value.shape} {value.dtype} {value.requires_grad}"
    elif isinstance(value, Tensor):
        yield f"{value.shape} {value.dtype} {value.asnumpy().tobytes().hex() if by_value else ''}"
    elif isinstance(value, np.ndarray):
        yield f"{value.shape} {value.dtype} {value.tobytes().hex()}"
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield str(key)
            yield from _described(value[key], by_value)
    elif isinstance(value, list | tuple):
        yield f"{_type(value)} {len(value)}"
        for part in value:
            yield from _described(part, by_value)
    elif isinstance(value, Primitive):
        yield value.name
        yield from _described(value.attrs)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        yield repr(value)
    else:
        yield _type(value)  # functions and the like: the code and the configuration say what they are


def _type(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
