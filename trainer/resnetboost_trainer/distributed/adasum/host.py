"""Adasum's arithmetic for one pair of vectors in NumPy: scalars in float64, vectors in float32."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.distributed.adasum.layout import Block

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Columns of a pair's scalars.
PRODUCT, LEFT, RIGHT = range(3)

# For exponents up to this one, float32 represents both 2^e and 2^-e.
LARGEST_POWER = 120

# A coefficient is of the order of the ratio of both norms. Above this value products are computed in float64: the
# coefficient of a tiny vector beside a huge one would be infinite in float32, although its product is not.
LARGE = 1e6

# Below this share of both vectors' squares, the square of their mean is only rounding of opposed vectors.
VANISHED = 1e-10


def products(left: Floats, right: Floats, blocks: Iterable[Block], tensors: int) -> Doubles:
    """Return <left, right> of the rows by tensor, (tensors,).

    In float64: squares of float32 underflow at 1e-23 and overflow at 1e19 (Horovod accumulates the same way).
    """
    result = np.zeros(tensors)
    for tensor, rows, columns in blocks:
        a = left[rows, columns].astype(np.float64).reshape(-1)
        result[tensor] += a @ (a if left is right else right[rows, columns].astype(np.float64).reshape(-1))
    return result


def coefficients(pair: Doubles) -> Doubles:
    """Return 1 - <a, b> / (2 |a|^2) and 1 - <a, b> / (2 |b|^2) by tensor, (tensors, 2); 1 for a zero vector.

    `pair` are a pair's complete scalars. There is no epsilon: it would treat small gradients like zero.
    """
    squares = pair[:, LEFT:]
    factors: Doubles = 1 - pair[:, :1] / np.where(squares > 0, 2 * squares, np.inf)
    return factors


def combine(left: Floats, right: Floats, blocks: Iterable[Block], factors: Doubles, result: Floats) -> None:
    """Write the rows of the pair's adaptive sum to `result`, which may be `left` or `right`."""
    for tensor, *here in blocks:
        wide = np.float64 if np.abs(factors[tensor]).max() > LARGE else np.float32
        ours, theirs = factors[tensor].astype(wide)
        place = tuple(here)
        result[place] = ours * left[place] + theirs * right[place]


def exponents(squares: Doubles) -> NDArray[np.int32]:
    """Return e such that a vector of that squared norm, times 2^-e, has a norm from 1/2 to 1; 0 for a zero vector."""
    exponent: NDArray[np.int32] = np.frexp(np.sqrt(squares))[1]
    return exponent


def scaled(rows: Floats, exponents: NDArray[np.int32], result: Floats) -> None:
    """Write rows times 2^exponent, one exponent per column, to `result`, which may be `rows`; exact."""
    if np.abs(exponents).max(initial=0) <= LARGEST_POWER:
        np.multiply(rows, np.ldexp(np.float32(1), exponents), out=result)
    else:
        np.ldexp(rows, exponents, out=result)


def cosines(pair: Doubles) -> Doubles:
    """Return the cosines between both vectors by tensor, without tensors where one vector is zero."""
    product, left, right = pair.T
    known = (left > 0) & (right > 0)
    found: Doubles = product[known] / (np.sqrt(left[known]) * np.sqrt(right[known]))
    return found


def gain(pair: Doubles) -> float:
    """Return the norm of the adaptive sum over that of the mean, for all tensors: 1 if parallel, 2 if orthogonal.

    |ca a + cb b|^2 is computed from the scalars. 1 if the mean vanishes, since then the sum does too. Opposed vectors
    give up to 3: Adasum lengthens their remainder.
    """
    product, left, right = pair.T
    ours, theirs = coefficients(pair).T
    adaptive = (ours**2 * left + theirs**2 * right + 2 * ours * theirs * product).sum()
    mean = (left + right + 2 * product).sum() / 4
    return float(np.sqrt(adaptive / mean)) if mean > VANISHED * (left + right).sum() else 1.0
