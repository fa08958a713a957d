"""Keys of compiled graphs: a hash of everything that a graph depends on.

MindSpore's own compile cache (2.10) checks only the files that the script imports, not those of an installed package.
The key therefore covers code, versions, the stage's configuration, and a cell's structure, constants and input shapes;
for weights only their names.
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

# Fields of the configuration that differ between attempts of a stage or do not affect its graphs.
ELSEWHERE = {"job", "attempt", "checkpoint", "divergence", "preflight", "rollBacks", "stragglerFactor", "tracking"}

# Prefixes of MindSpore's variables that affect compilation; its others differ from start to start.
VARIABLES = ("MS_DEV_", "MS_ENABLE_", "MS_JIT")


def environment(config: Config, world_size: int) -> str:
    """Hash what all graphs of a stage depend on."""
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
    """Hash what the graph of a cell, called with such arguments, depends on besides the environment.

    `part` distinguishes cells of the program that differ in functions alone, which are not hashed.
    """
    return _digest([part, *_described(list(arguments), by_value=False), *_structure(cell)])


def _digest(pieces: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(f"{len(piece)} {piece}\n".encode())
    return digest.hexdigest()


@functools.cache
def _code() -> str:
    """Hash the trainer's own sources."""
    root = Path(__file__).parents[1]
    return _digest([f"{path.relative_to(root)} {path.read_text()}" for path in sorted(root.rglob("*.py"))])


@functools.cache
def _own_to_cells() -> frozenset[str]:
    """Attributes that MindSpore gives every cell, such as names and counters; all others are the network's."""
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
        yield _type(value)  # functions and the like depend on code and configuration alone


def _type(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
