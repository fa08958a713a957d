"""Principal components from a Gram matrix against a full singular value decomposition."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from resnetboost_trainer.optim.pca import gram
from resnetboost_trainer.optim.pca.gram import Components, Read

Floats = NDArray[np.float32]


def trajectory(snapshots: int, numbers: int, seed: int = 0) -> Floats:
    """Weights around 1 that change by a hundredth a step, as in training."""
    generator = np.random.default_rng(seed)
    steps = 0.01 * generator.standard_normal((snapshots, numbers), np.float32)
    rows: Floats = generator.standard_normal(numbers, np.float32) + steps.cumsum(0)
    return rows


def reader(rows: Floats) -> Read:
    return lambda start, stop: rows[:, start:stop]


def found(rows: Floats, wanted: int) -> tuple[Components, Floats]:
    read, numbers = reader(rows), rows.shape[1]
    components = gram.components(gram.products(read, 0, numbers, len(rows)), wanted)
    return components, gram.basis(components, read, 0, numbers)


def projector(basis: NDArray[Any]) -> NDArray[np.float64]:
    wide = basis.astype(np.float64)
    product: NDArray[np.float64] = wide.T @ wide
    return product


def test_components_equal_those_of_the_svd() -> None:
    rows = trajectory(12, 300)
    components, basis = found(rows, 5)
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(np.sum(basis * right[:5], axis=1)), 1, rtol=1e-6)
    np.testing.assert_allclose(components.variances, singular[:5] ** 2 / 11, rtol=1e-9)
    np.testing.assert_allclose(components.share, singular[:5] ** 2 / (singular**2).sum(), rtol=1e-9)


@given(st.integers(2, 9), st.integers(20, 200), st.integers(0, 2**31))
def test_the_basis_is_orthonormal_and_projects(snapshots: int, numbers: int, seed: int) -> None:
    _, basis = found(trajectory(snapshots, numbers, seed), snapshots - 1)
    wide = basis.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, np.eye(snapshots - 1), atol=1e-5)
    q = projector(basis)
    np.testing.assert_allclose(q @ q, q, atol=1e-5)
    assert np.trace(q) == pytest.approx(snapshots - 1, abs=1e-4)
    gradient = np.random.default_rng(seed).standard_normal(numbers)
    rest = gradient - wide.T @ (wide @ gradient)
    np.testing.assert_allclose(wide @ rest, 0, atol=1e-5)
    assert gradient @ gradient == pytest.approx((wide @ gradient) @ (wide @ gradient) + rest @ rest, rel=1e-5)


def test_neither_the_order_of_snapshots_nor_a_constant_vector_matters() -> None:
    rows = trajectory(8, 100)
    _, basis = found(rows, 3)
    _, reordered = found(rows[[3, 1, 7, 0, 2, 6, 5, 4]], 3)
    _, shifted = found(rows + np.float32(0.5), 3)
    np.testing.assert_allclose(projector(reordered), projector(basis), atol=1e-6)
    np.testing.assert_allclose(projector(shifted), projector(basis), atol=1e-4)


def test_shards_of_columns_add_up_to_the_whole_and_are_its_columns() -> None:
    rows, bounds = trajectory(6, 101), [0, 34, 68, 101]
    read = reader(rows)
    shards = list(itertools.pairwise(bounds))
    together = sum(gram.products(read, *shard, 6) for shard in shards)
    np.testing.assert_allclose(together, gram.products(read, 0, 101, 6), rtol=1e-12)
    components, basis = found(rows, 4)
    pieces = [gram.basis(components, read, *shard) for shard in shards]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), basis)


def test_a_new_snapshot_reuses_the_old_products() -> None:
    rows = trajectory(7, 90)
    before = gram.products(reader(rows[:6]), 0, 90, 6)
    np.testing.assert_allclose(
        gram.grown(before, reader(rows), 0, 90), gram.products(reader(rows), 0, 90, 7), rtol=1e-12, atol=1e-15
    )


def test_memory_is_bounded_by_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, asked = trajectory(5, 1000), []
    monkeypatch.setattr(gram, "BLOCK", 64)
    monkeypatch.setattr(gram, "CHUNK", 16)

    def read(start: int, stop: int) -> Floats:
        asked.append(stop - start)
        return rows[:, start:stop]

    components = gram.components(gram.products(read, 0, 1000, 5), 2)
    streamed = gram.basis(components, read, 0, 1000)
    assert max(asked) == 64
    assert sum(asked) == 2 * 1000, "each number is read once for the products and once for the basis"
    monkeypatch.undo()
    np.testing.assert_allclose(np.abs(np.sum(streamed * found(rows, 2)[1], axis=1)), 1, rtol=1e-6)


def test_a_read_buffer_may_be_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, buffer = trajectory(5, 1000), np.empty((5, 64), np.float32)
    expected = found(rows, 3)[1]
    monkeypatch.setattr(gram, "BLOCK", 64)
    monkeypatch.setattr(gram, "CHUNK", 16)

    def read(start: int, stop: int) -> Floats:
        buffer[:, : stop - start] = rows[:, start:stop]
        return buffer[:, : stop - start]

    components = gram.components(gram.products(read, 0, 1000, 5), 3)
    np.testing.assert_allclose(gram.basis(components, read, 0, 1000), expected, atol=1e-6)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "CHUNK", 64)
    rows = trajectory(7, 1000)
    with threadpool_limits(1, "blas"):
        components, basis = found(rows, 3)
    with threadpool_limits(2, "blas"):
        again, basis_again = found(rows, 3)
    np.testing.assert_array_equal(again.coefficients, components.coefficients)
    np.testing.assert_array_equal(basis_again, basis)


def test_a_smooth_trajectory_has_an_orthonormal_basis() -> None:
    """Its last components are 1e-4 of the first: computed in float32 they would be off by 1e-4."""
    generator, time = np.random.default_rng(0), np.linspace(0, 1, 60)[:, None]
    start, way, bend = 0.05 * generator.standard_normal((3, 1, 20000))
    noise = 1e-5 * generator.standard_normal((60, 20000))
    _, basis = found((start + way * time + bend * time**2 + noise).astype(np.float32), 32)
    wide = basis.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, np.eye(32), atol=1e-6)


def test_a_failed_read_is_told() -> None:
    def read(start: int, stop: int) -> Floats:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        gram.products(read, 0, 100, 5)


def test_the_sign_does_not_depend_on_the_machine() -> None:
    components, _ = found(trajectory(6, 80), 4)
    largest = np.abs(components.coefficients).argmax(1)
    assert (components.coefficients[np.arange(4), largest] > 0).all()
    np.testing.assert_allclose(components.coefficients.sum(1), 0, atol=1e-9)


@pytest.mark.parametrize(
    ("rows", "directions"),
    [(trajectory(4, 50), 3), (np.repeat(trajectory(2, 50), 2, axis=0), 1), (np.ones((3, 50), np.float32), 0)],
    ids=["too few", "the same twice", "all the same"],
)
def test_more_components_than_there_are_directions_are_refused(rows: Floats, directions: int) -> None:
    says = f"{directions + 1} components are asked for, and {len(rows)} snapshots have {directions} directions"
    with pytest.raises(ValueError, match=says):
        found(rows, directions + 1)
    if directions:
        assert found(rows, directions)[1].shape == (directions, 50)
