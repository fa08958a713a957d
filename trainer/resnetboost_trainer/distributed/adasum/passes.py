"""Passes of an adaptive sum over rows of tensors, (rows, share): in C++ operators where they are built, else in NumPy.

Tensor t has the columns from bounds[t] to bounds[t + 1] of every row. Of eight ranks on two cores, passes in NumPy took
as long as the communication.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.distributed.adasum.host import Doubles, Floats
from resnetboost_trainer.kernels import arrays, library

Bounds = NDArray[np.int32]

# Numbers that NumPy processes at a time, so that temporaries stay in a core's cache.
BLOCK = 32768

# For exponents up to this one, float32 represents both 2^e and 2^-e.
LARGEST_POWER = 120

# A coefficient is of the order of the ratio of both norms. Above this value products are computed in float64: the
# coefficient of a tiny vector beside a huge one would be infinite in float32, although its product is not.
LARGE = 1e6


def products(left: Floats, right: Floats, bounds: Bounds) -> Doubles:
    """Return <left, right> and <left, left> by tensor, (2, tensors).

    In float64: squares of float32 underflow at 1e-23 and overflow at 1e19 (Horovod accumulates the same way).
    """
    result = np.zeros((2, len(bounds) - 1))
    if operators := library.usable():
        arrays.call(operators, "adasum_products", left, right, bounds, result)
        return result
    for tensor, columns in _blocks(len(left), bounds):
        a = left[:, columns].astype(np.float64).reshape(-1)
        b = a if left is right else right[:, columns].astype(np.float64).reshape(-1)
        result[:, tensor] += a @ b, a @ a
    return result


def scale(rows: Floats, bounds: Bounds, exponents: NDArray[np.int32], result: Floats) -> None:
    """Write rows times 2^exponent of their tensor to `result`, which may be `rows`; exact."""
    if operators := _for(exponents):
        arrays.call(operators, "adasum_scale", rows, bounds, exponents, result)
    else:
        _scale(rows, _by_column(exponents, bounds), result)


def unscale(total: Floats, own: Floats, bounds: Bounds, exponents: NDArray[np.int32]) -> None:
    """Replace `own` by (total - own) times 2^exponent of its tensor."""
    if operators := _for(exponents):
        arrays.call(operators, "adasum_unscale", total, bounds, exponents, own)
    else:
        np.subtract(total, own, out=own)
        _scale(own, _by_column(exponents, bounds), own)


def combine(left: Floats, right: Floats, bounds: Bounds, factors: Doubles, result: Floats) -> None:
    """Write factors[:, 0] left + factors[:, 1] right to `result`, which may be `left` or `right`.

    factors: by tensor, (tensors, 2).
    """
    if operators := library.usable():
        arrays.call(operators, "adasum_combine", left, right, bounds, factors, np.array([LARGE]), result)
        return
    for tensor, columns in _blocks(len(left), bounds):
        wide = np.float64 if np.abs(factors[tensor]).max() > LARGE else np.float32
        ours, theirs = factors[tensor].astype(wide)
        # A scalar of float64 would not widen an array of float32.
        result[:, columns] = ours * left[:, columns].astype(wide) + theirs * right[:, columns].astype(wide)


def _for(exponents: NDArray[np.int32]) -> Path | None:
    """Return the operators, None also where a power of two would leave float32."""
    return library.usable() if np.abs(exponents).max(initial=0) <= LARGEST_POWER else None


def _scale(rows: Floats, exponents: NDArray[np.int32], result: Floats) -> None:
    if np.abs(exponents).max(initial=0) <= LARGEST_POWER:
        np.multiply(rows, np.ldexp(np.float32(1), exponents), out=result)
    else:
        np.ldexp(rows, exponents, out=result)


def _by_column(of_tensors: NDArray[np.int32], bounds: Bounds) -> NDArray[Any]:
    return np.repeat(of_tensors, np.diff(bounds))


def _blocks(rows: int, bounds: Bounds) -> Iterator[tuple[int, slice]]:
    """Yield a tensor and columns of it that are about BLOCK numbers in these rows, until all are covered."""
    wide = max(1, BLOCK // rows) if rows else 1
    for tensor, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
        for column in range(first, last, wide):
            yield tensor, slice(column, min(column + wide, last))
