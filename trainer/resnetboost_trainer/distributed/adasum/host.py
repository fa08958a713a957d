"""Adasum's formulas for one pair of vectors, from their scalars by tensor, in float64."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Columns of a pair's scalars.
PRODUCT, LEFT, RIGHT = range(3)

# Below this share of both vectors' squares, the square of their mean is only rounding of opposed vectors.
VANISHED = 1e-10


def coefficients(pair: Doubles) -> Doubles:
    """Return 1 - <a, b> / (2 |a|^2) and 1 - <a, b> / (2 |b|^2) by tensor, (tensors, 2); 1 for a zero vector.

    `pair` are a pair's complete scalars. There is no epsilon: it would treat small gradients like zero.
    """
    squares = pair[:, LEFT:]
    factors: Doubles = 1 - pair[:, :1] / np.where(squares > 0, 2 * squares, np.inf)
    return factors


def exponents(squares: Doubles) -> NDArray[np.int32]:
    """Return e such that a vector of that squared norm, times 2^-e, has a norm from 1/2 to 1; 0 for a zero vector."""
    exponent: NDArray[np.int32] = np.frexp(np.sqrt(squares))[1]
    return exponent


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
