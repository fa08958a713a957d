"""Calls C++ operators on NumPy arrays, outside of MindSpore's graphs."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def call(library: Path, name: str, *arrays: NDArray[Any]) -> None:
    """Call operator `name`; inputs come first, then the outputs, which are written.

    Raises ValueError for an array that is not dense and row-major, RuntimeError if the operator refuses.
    """
    count = len(arrays)
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError(f"operator {name}: an array is not row-major")
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    failed = getattr(_loaded(library), name)(
        count,
        (ctypes.c_void_p * count)(*[array.ctypes.data for array in arrays]),
        (ctypes.c_int * count)(*[array.ndim for array in arrays]),
        (ctypes.c_void_p * count)(*[ctypes.addressof(shape) for shape in shapes]),
        (ctypes.c_char_p * count)(*[_type(array.dtype) for array in arrays]),
        None,
        None,
    )
    if failed:
        raise RuntimeError(f"operator {name} refuses its arrays; the reason is on stderr")


@functools.cache
def _loaded(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


@functools.cache
def _type(dtype: np.dtype[Any]) -> bytes:
    return str(dtype).encode()
