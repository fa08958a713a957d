"""The arithmetic of one pair in NumPy: scalars in float64, vectors in float32."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.distributed.adasum.layout import Block

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Columns of a pair's scalars.
PRODUCT, LEFT, RIGHT = range(3)

# A power of 2 that float32 has the inverse of too.
LARGEST_POWER = 120

# A coefficient is of the order of the ratio of both norms. Beyond this one products are made in float64: in float32
# the coefficient of a tiny vector beside a huge one would be infinite, though its product is not.
LARGE = 1e6

# A mean's square by this share of those of both vectors is what rounding leaves of opposed ones.
VANISHED = 1e-10


def products(left: Floats, right: Floats, blocks: Iterable[Block], tensors: int) -> Doubles:
    """<left, right> of these rows by tensor, (tensors,).

    In float64: squares of float32 underflow at 1e-23 and overflow at 1e19 (Horovod accumulates the same way).
    """
    result = np.zeros(tensors)
    for tensor, rows, columns in blocks:
        a = left[rows, columns].astype(np.float64).reshape(-1)
        result[tensor] += a @ (a if left is right else right[rows, columns].astype(np.float64).reshape(-1))
    return result


def coefficients(pair: Doubles) -> Doubles:
    """1 - <a, b> / (2 |a|^2) and 1 - <a, b> / (2 |b|^2) by tensor, (tensors, 2); 1 for a vector that is zero.

    From a pair's whole scalars. No epsilon: it would do to small gradients what zero is done to.
    """
    squares = pair[:, LEFT:]
    factors: Doubles = 1 - pair[:, :1] / np.where(squares > 0, 2 * squares, np.inf)
    return factors


def combine(left: Floats, right: Floats, blocks: Iterable[Block], factors: Doubles, result: Floats) -> None:
    """Write these rows of the pair's adaptive sum to `result`, which may be one of both."""
    for tensor, *here in blocks:
        wide = np.float64 if np.abs(factors[tensor]).max() > LARGE else np.float32
        ours, theirs = factors[tensor].astype(wide)
        place = tuple(here)
        result[place] = ours * left[place] + theirs * right[place]


def exponents(squares: Doubles) -> NDArray[np.int32]:
    """e such that a vector of that squared norm times 2^-e has a norm from 1/2 to 1; 0 for one of zeros."""
    exponent: NDArray[np.int32] = np.frexp(np.sqrt(squares))[1]
    return exponent


def scaled(rows: Floats, exponents: NDArray[np.int32], result: Floats) -> None:
    """Write rows times 2^exponent, one for each column, to `result`, which may be the same: exact."""
    if np.abs(exponents).max(initial=0) <= LARGEST_POWER:
        np.multiply(rows, np.ldexp(np.float32(1), exponents), out=result)
    else:
        np.ldexp(rows, exponents, out=result)


def cosines(pair: Doubles) -> Doubles:
    """Of the angles between both vectors, by tensor; those with a zero vector are left out."""
    product, left, right = pair.T
    known = (left > 0) & (right > 0)
    found: Doubles = product[known] / (np.sqrt(left[known]) * np.sqrt(right[known]))
    return found


def gain(pair: Doubles) -> float:
    """The adaptive sum's norm over the mean's, all tensors together: 1 for parallel vectors, 2 for orthogonal ones.

    |ca a + cb b|^2 from the scalars alone. 1 where the mean vanishes, in which case the sum does too. Vectors
    that oppose each other give up to 3: Adasum lengthens what they have left.
    """
    product, left, right = pair.T
    ours, theirs = coefficients(pair).T
    adaptive = (ours**2 * left + theirs**2 * right + 2 * ours * theirs * product).sum()
    mean = (left + right + 2 * product).sum() / 4
    return float(np.sqrt(adaptive / mean)) if mean > VANISHED * (left + right).sum() else 1.0
