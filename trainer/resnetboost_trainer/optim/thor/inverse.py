"""Inverts damped blocks on the host, and splits the damping between two factors; never raises.

By a C++ operator (kernels/inverse.cpp) or, where there is none, by Cholesky with LAPACK. Runs on the host for every
device: the blocks of ResNet-50 at size 128 take 1.34 GFLOP, which is negligible beside the steps between two updates,
and LAPACK and the operator report exactly which block is not positive definite.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from resnetboost_trainer.kernels import arrays, library

Blocks = NDArray[np.float32]

# Size of the largest block for the C++ operator, which has eight of them side by side in the processor's second cache.
LARGEST = 128


def invert_all(given: Sequence[tuple[Blocks, float]]) -> list[Blocks]:
    """Return `invert` of each array of blocks with its damping; blocks of the same size are inverted together."""
    results: list[Blocks] = [blocks for blocks, _ in given]
    for size in sorted({blocks.shape[1] for blocks, _ in given}):
        places = [k for k, (blocks, _) in enumerate(given) if blocks.shape[1] == size]
        counts = [len(given[k][0]) for k in places]
        dampings = np.repeat([given[k][1] for k in places], counts)
        inverses, _ = invert(np.concatenate([given[k][0] for k in places]), dampings)
        for k, own in zip(places, np.split(inverses, np.cumsum(counts)[:-1]), strict=True):
            results[k] = own
    return results


def invert(blocks: Blocks, dampings: float | NDArray[np.float64]) -> tuple[Blocks, NDArray[np.bool_]]:
    """Return (block + damping I)^-1 of symmetric blocks (n, b, b), and a mask (n,) of those that could be inverted.

    `dampings` is one number or (n,). The inverse of a block that is not finite or, with its damping, not positive
    definite is NaN.
    """
    added = np.array(np.broadcast_to(dampings, len(blocks)), np.float64)
    operators = library.usable() if 1 < blocks.shape[1] <= LARGEST else None
    if operators is not None and len(blocks) > 0:
        inverses = np.empty(blocks.shape, np.float32)
        arrays.call(operators, "invert_blocks", np.ascontiguousarray(blocks), added, inverses)
        return inverses, np.isfinite(inverses[:, 0, 0])  # an inverse is NaN as a whole
    return _invert_in_turn(blocks, added)


def _invert_in_turn(blocks: Blocks, dampings: NDArray[np.float64]) -> tuple[Blocks, NDArray[np.bool_]]:
    usable = np.isfinite(blocks).all(axis=(1, 2)) & np.isfinite(dampings)
    inverses = np.full_like(blocks, np.nan)
    with np.errstate(all="ignore"):
        one_by_one = _reciprocals if blocks.shape[1] == 1 else _inverses
        inverses[usable] = one_by_one(blocks[usable], dampings[usable, None])
    ok = np.isfinite(inverses).all(axis=(1, 2))
    inverses[~ok] = np.nan
    return inverses, ok


def _reciprocals(blocks: Blocks, dampings: NDArray[np.float64]) -> Blocks:
    damped = blocks.astype(np.float64) + dampings[:, None]
    return np.where(damped > 0, 1 / damped, np.nan).astype(np.float32)


def _inverses(blocks: Blocks, dampings: NDArray[np.float64]) -> Blocks:
    # In float64, which is hardly slower (a block of 117: 0.107 ms, in float32 0.102). For a block of 117 with mean
    # eigenvalue 6 and rank 32, typical of small batches, the largest error over the largest entry is 5e-8 at every
    # damping from 0.1 to 1e-6 (numpy's float64 inverse is the reference); by spotrf and spotri it is 2e-6, 2e-5, 2e-4,
    # 2e-3, 4e-2 from 0.1 to 1e-5, and at 1e-6 they fail.
    size = blocks.shape[1]
    damped = blocks.astype(np.float64)
    damped.reshape(len(blocks), size * size)[:, :: size + 1] += dampings
    for block in damped:
        # In place: rows of a C array are LAPACK's columns, so its lower triangle is our upper one.
        factor, failed = lapack.dpotrf(block.T, lower=1, clean=0, overwrite_a=1)
        if failed:
            block[:] = np.nan
        else:
            lapack.dpotri(factor, lower=1, overwrite_c=1)
    upper = np.tri(size, dtype=np.bool_).T
    return np.where(upper, damped, damped.transpose(0, 2, 1)).astype(np.float32)


def pi(trace_a: float, dim_a: int, trace_g: float, dim_g: int) -> float:
    """Return pi, the square root of the ratio of the mean eigenvalues of A and G (Martens & Grosse 2015, §6.3)."""
    mean_a, mean_g = trace_a / dim_a, trace_g / dim_g
    usable = 0 < mean_a < math.inf and 0 < mean_g < math.inf
    return math.sqrt(mean_a / mean_g) if usable else 1.0


def damping_shares(damping: float, positions: float, pi: float) -> tuple[float, float]:
    """Return the damping of A and of G: their product is damping / positions, their ratio pi squared.

    Then positions * (A + share I) kron (G + share I) contains damping I. With pi = 1 it is MindSpore's convention.
    """
    share = math.sqrt(damping / positions)
    return pi * share, share / pi
