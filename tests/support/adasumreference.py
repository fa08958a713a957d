"""Adasum reference in float64, by definition, on the vectors of all nodes at once.

Adasum(a, b) = (1 - <a, b> / (2 |a|^2)) a + (1 - <a, b> / (2 |b|^2)) b for each tensor by itself, and over 2^k nodes by
halves of the nodes (Maleki et al. 2021, §3). Other numbers of nodes: node j >= 2^k, with 2^k the largest power of two
below, is first combined with node j - 2^k.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Horovod's tolerance for its own Adasum: an error of this many units of rounding.
UNITS = 100

EPSILON = {np.dtype(np.float16): 2.0**-10, np.dtype(np.float32): 2.0**-23}


class Reference:
    """Adasum of the rows of `vectors`, (nodes, length), with tensors of `sizes`, and its statistics.

    `cosines`: of each tensor of each pair where neither is zero. `gain`: |Adasum| over |mean| of a pair, averaged over
    the pairs of a level, multiplied over the levels; in the folding, a node without a partner is a pair of gain 1.
    """

    def __init__(self, vectors: ArrayLike, sizes: Sequence[int]) -> None:
        nodes = [self._tensors(row, sizes) for row in np.asarray(vectors, np.float64)]
        self.cosines: list[float] = []
        self._gains: dict[str, list[float]] = {}
        power = 2 ** int(math.log2(len(nodes)))
        lowest = [self._pair("fold", *nodes[j::power]) for j in range(power)] if len(nodes) > power else nodes
        self.sum = np.concatenate(self._recursion(lowest))
        self.gain = math.prod(sum(gains) / len(gains) for gains in self._gains.values())

    def told(self) -> list[float]:
        """Mean cosine, smallest cosine, gain; nan without a cosine."""
        nothing = [math.nan]
        return [float(np.mean(self.cosines or nothing)), min(self.cosines or nothing), self.gain]

    @staticmethod
    def _tensors(row: Array, sizes: Sequence[int]) -> list[Array]:
        return np.split(row, np.cumsum(sizes)[:-1])

    def _recursion(self, nodes: list[list[Array]]) -> list[Array]:
        if len(nodes) == 1:
            return nodes[0]
        half = len(nodes) // 2
        return self._pair(str(len(nodes)), self._recursion(nodes[:half]), self._recursion(nodes[half:]))

    def _pair(self, level: str, left: list[Array], right: list[Array] | None = None) -> list[Array]:
        result = left if right is None else [adasum(a, b) for a, b in zip(left, right, strict=True)]
        mean = left if right is None else [(a + b) / 2 for a, b in zip(left, right, strict=True)]
        self.cosines += [cosine(a, b) for a, b in zip(left, right or (), strict=False) if a.any() and b.any()]
        denominator = norm(mean)
        self._gains.setdefault(level, []).append(norm(result) / denominator if denominator else 1.0)
        return result


def adasum(a: Array, b: Array) -> Array:
    """Adasum of two tensors; with a vector of zeros the result is the other one."""
    if not a.any() or not b.any():
        return a + b
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


def cosine(a: Array, b: Array) -> float:
    return float((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)))


def norm(tensors: Sequence[Array]) -> float:
    return float(np.linalg.norm(np.concatenate(tensors)))


def node_means(values: ArrayLike, ranks_per_node: int) -> Array:
    """Means over nodes: (ranks, length) -> (nodes, length); a node is `ranks_per_node` consecutive ranks."""
    wide = np.asarray(values, np.float64)
    means: Array = wide.reshape(-1, ranks_per_node, wide.shape[1]).mean(1)
    return means


def error(found: ArrayLike, expected: ArrayLike, sizes: Sequence[int], dtype: type = np.float32) -> float:
    """The worst tensor's relative error, |found - expected| / |expected|, in units of Horovod's tolerance."""
    pairs = [(np.split(np.asarray(row, np.float64).reshape(-1), np.cumsum(sizes)[:-1])) for row in (found, expected)]
    errors = [np.linalg.norm(got - true) / (np.linalg.norm(true) or 1.0) for got, true in zip(*pairs, strict=True)]
    return float(np.max(errors)) / (UNITS * EPSILON[np.dtype(dtype)])
