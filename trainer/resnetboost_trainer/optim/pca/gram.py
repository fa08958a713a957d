"""Principal components of a few large snapshots, from the Gram matrix of their inner products; reads no files.

With N snapshots w_i of M numbers as rows of W and N much smaller than M, the eigenvectors of the N x N matrix of inner
products give the principal components (Sirovich 1987, "method of snapshots"): exact, with one pass over the snapshots
for the subspace and one for its basis, a range of columns at a time. The ranges can be distributed over ranks: their
inner products add up.
"""

import collections
import threading
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

# (start, stop) -> these columns of all snapshots, (N, stop - start), valid until the next call.
Read = Callable[[int, int], Floats]

# Columns at a time: 4 MB in float64 for 60 snapshots, which mostly fits the cache.
CHUNK = 8192
# Columns to read at a time, whole chunks: a read and a hash of less take longer to call than to do.
BLOCK = 8 * CHUNK

# Share of the largest eigenvalue below which a direction is only rounding of float32 snapshots.
NEGLIGIBLE = 1e-12


class Components(msgspec.Struct, frozen=True):
    """The first k principal components of N snapshots, as combinations of them: P = coefficients @ W, (k, M).

    `variances` (k,) are the snapshots' sample variances (divisor N - 1) along each component; `share` (k,) is the part
    of the total variance that each explains. Rows of `coefficients` (k, N) sum to zero, which centres the snapshots.
    """

    coefficients: Doubles
    variances: Doubles
    share: Doubles


def products(read: Read, start: int, stop: int, snapshots: int) -> Doubles:
    """Return the inner products (N, N) of the snapshots' differences from the first one, in a range of columns.

    The components do not depend on the vector subtracted, but the rounding does: the squares of the weights are many
    times those of their movement.
    """
    total = np.zeros((snapshots, snapshots))
    for part in _by_chunks(lambda _, moved: _products(moved), read, start, stop):
        total += part
    return total


def grown(before: Doubles, read: Read, start: int, stop: int) -> Doubles:
    """Extend inner products by one snapshot, the last of `read`: M N operations instead of M N^2."""
    snapshots = len(before) + 1
    row = np.zeros(snapshots)
    for part in _by_chunks(lambda _, moved: moved @ moved[-1], read, start, stop):
        row += part
    total = np.zeros((snapshots, snapshots))
    total[:-1, :-1], total[-1], total[:, -1] = before, row, row
    return total


def components(inner: Doubles, wanted: int) -> Components:
    """Return the first `wanted` principal components of snapshots, from their inner products.

    Signs make each component's largest coefficient positive, so that all ranks agree.
    Raises ValueError if the snapshots have fewer directions.
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
    """Return a range of columns of P, (k, stop - start); P's rows are orthonormal over all columns.

    Computed in float64: a smooth trajectory's last components are small differences of large movements, and a float32
    product, which would take half as long, costs four digits of orthonormality (1e-8 to 1e-4).
    """
    columns = np.empty((len(found.coefficients), stop - start), np.float32)
    kept = threading.local()

    def fill(begin: int, moved: Doubles) -> None:
        if not hasattr(kept, "part"):
            kept.part = np.empty((len(columns), CHUNK))
        part = kept.part.reshape(-1)[: len(columns) * moved.shape[1]].reshape(len(columns), -1)
        columns[:, begin - start : begin - start + moved.shape[1]] = np.matmul(found.coefficients, moved, out=part)

    collections.deque(_by_chunks(fill, read, start, stop), maxlen=0)
    return columns


def _by_chunks(work: Callable[[int, Doubles], Result], read: Read, start: int, stop: int) -> Iterator[Result]:
    """Yield `work(first column, numbers)` of each chunk in order, computed on as many threads as BLAS would use.

    BLAS itself is limited to one thread: more gain nothing on so few rows, and busy-wait.
    """
    found = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    threads = max(found, default=1)  # SciPy brings a BLAS of its own, with other threads than NumPy's
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        waiting: collections.deque[Future[Result]] = collections.deque()
        for begin, moved in _chunks(read, start, stop, kept=threads + 2):
            waiting.append(pool.submit(work, begin, moved))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _chunks(read: Read, start: int, stop: int, kept: int) -> Iterator[tuple[int, Doubles]]:
    """Yield (first column, differences from the first snapshot) of each chunk; the last `kept` of them stay valid.

    Their memory is used again: the first touch of new memory takes longer than the subtraction.
    """
    buffers: collections.deque[Doubles] = collections.deque()
    for first in range(start, stop, BLOCK):
        block = read(first, min(first + BLOCK, stop))
        for column in range(0, block.shape[1], CHUNK):
            rows = block[:, column : column + CHUNK]
            if len(buffers) < kept:
                buffers.append(np.empty((len(rows), CHUNK)))
            buffers.rotate(1)
            moved = buffers[0][:, : rows.shape[1]]
            moved[:] = rows
            moved -= moved[0].copy()
            yield first + column, moved


def _products(rows: Doubles) -> Doubles:
    inner: Doubles = rows @ rows.T
    return inner
