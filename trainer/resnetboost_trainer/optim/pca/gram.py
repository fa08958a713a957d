"""Principal components of few snapshots of many numbers, by the matrix of their inner products; it reads no files.

With N snapshots w_i of M numbers as rows of W and N much smaller than M, the eigenvectors of the N x N matrix of inner
products give the principal components (Sirovich 1987, "method of snapshots"): exact, in one pass over the snapshots to
know the subspace and one to write it down, a range of columns at a time. A rank can do its own columns of both: the
products of all ranges add up to those of the whole.
"""

import collections
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

Result = TypeVar("Result")

# (start, stop) -> all snapshots' numbers there, (N, stop - start), until the next call.
Read = Callable[[int, int], Floats]

# Columns at a time: in float64, 60 snapshots of them are 4 MB, which is little memory to find and mostly in the cache.
CHUNK = 8192

# Of the largest eigenvalue, below which a direction is nothing but rounding of float32 snapshots.
NEGLIGIBLE = 1e-12


class Components(msgspec.Struct, frozen=True):
    """The first k principal components of N snapshots, as combinations of them: P = coefficients @ W, (k, M).

    `variances` (k,) are those of the snapshots along each component, with N - 1 as statisticians have it; `share` (k,)
    is what of the whole variance they explain. Rows of `coefficients` (k, N) add up to zero: they centre by themselves.
    """

    coefficients: Doubles
    variances: Doubles
    share: Doubles


def products(read: Read, start: int, stop: int, snapshots: int) -> Doubles:
    """Inner products (N, N) of what the snapshots differ from the first one by, in those columns.

    The components do not depend on what is subtracted, the rounding does: the squares of the weights themselves are
    many times those of their movement.
    """
    total = np.zeros((snapshots, snapshots))
    for part in _by_chunks(lambda _, moved: _products(moved), read, start, stop):
        total += part
    return total


def grown(before: Doubles, read: Read, start: int, stop: int) -> Doubles:
    """`products` when one snapshot more is there, the last of `read`: M N work instead of M N^2."""
    snapshots = len(before) + 1
    row = np.zeros(snapshots)
    for part in _by_chunks(lambda _, moved: moved @ moved[-1], read, start, stop):
        row += part
    total = np.zeros((snapshots, snapshots))
    total[:-1, :-1], total[-1], total[:, -1] = before, row, row
    return total


def components(inner: Doubles, wanted: int) -> Components:
    """The first `wanted` components of snapshots with those inner products.

    Each has the sign that makes its largest coefficient positive, so that all ranks have the same.
    Raises ValueError when the snapshots have fewer directions.
    """
    snapshots = len(inner)
    centred = inner - inner.mean(0) - inner.mean(1)[:, None] + inner.mean()
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    values, vectors = values[::-1], vectors[:, ::-1]
    directions = int((values > NEGLIGIBLE * max(values[0], 0)).sum()) if values[0] > 0 else 0
    if wanted > directions:
        raise ValueError(f"{wanted} components are asked for, and {snapshots} snapshots have {directions} directions")
    chosen = vectors[:, :wanted].T
    chosen = chosen - chosen.mean(1, keepdims=True)
    chosen *= np.sign(chosen[np.arange(wanted), np.abs(chosen).argmax(1)])[:, None]
    return Components(
        coefficients=chosen / np.sqrt(values[:wanted])[:, None],
        variances=values[:wanted] / (snapshots - 1),
        share=values[:wanted] / values[values > 0].sum(),
    )


def basis(found: Components, read: Read, start: int, stop: int) -> Floats:
    """Those columns of P, (k, stop - start): its rows are orthonormal over all columns.

    In float64 too: a smooth trajectory's last components are small differences of large movements, and lose four digits
    of their orthonormality (1e-8 to 1e-4) to a product in float32, which would take half as long.
    """
    columns = np.empty((len(found.coefficients), stop - start), np.float32)

    def fill(begin: int, moved: Doubles) -> None:
        columns[:, begin - start : begin - start + moved.shape[1]] = found.coefficients @ moved

    collections.deque(_by_chunks(fill, read, start, stop), maxlen=0)
    return columns


def _by_chunks(work: Callable[[int, Doubles], Result], read: Read, start: int, stop: int) -> Iterator[Result]:
    """What `work` makes of each chunk's first column and numbers, in order, on as many threads as BLAS would use.

    Each has BLAS to itself: its own threads gain nothing on so few rows, and keep cores busy while they wait.
    """
    found = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    threads = max(found, default=1)  # SciPy brings a BLAS of its own, with other threads than NumPy's
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        waiting: collections.deque[Future[Result]] = collections.deque()
        for begin in range(start, stop, CHUNK):
            waiting.append(pool.submit(work, begin, _moved(read(begin, min(begin + CHUNK, stop)))))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _moved(rows: Floats) -> Doubles:
    doubles = rows.astype(np.float64)
    doubles -= doubles[0].copy()
    return doubles


def _products(rows: Doubles) -> Doubles:
    inner: Doubles = rows @ rows.T
    return inner
