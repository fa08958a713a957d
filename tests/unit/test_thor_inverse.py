"""Damped inverses of THOR's factors, in float32, against float64."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from resnetboost_trainer.optim.thor.inverse import damping_shares, invert, pi


def covariances(count: int, size: int, rows: int, seed: int = 0) -> NDArray[np.float32]:
    """Covariance blocks of that size and rank at most `rows`; scales differ by entry, as those of activations do."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, size, rows)) * np.exp(generator.normal(size=(count, size, 1)))
    blocks: NDArray[np.float32] = (x @ x.transpose(0, 2, 1) / rows).astype(np.float32)
    return blocks


@pytest.mark.parametrize("damping", [1e-1, 1e-3, 1e-5, 1e-6])
@pytest.mark.parametrize(("size", "rows"), [(1, 64), (2, 64), (72, 1000), (117, 32), (128, 4096)], ids=str)
def test_is_the_inverse_of_the_damped_block_to_the_last_bits_of_float32(size: int, rows: int, damping: float) -> None:
    blocks = covariances(3, size, rows)
    inverses, ok = invert(blocks, damping)
    expected = np.linalg.inv(blocks.astype(np.float64) + damping * np.eye(size))
    assert inverses.dtype == np.float32
    assert ok.tolist() == [True] * 3
    assert np.abs(inverses - expected).max() <= 1e-7 * np.abs(expected).max()


def test_times_the_block_is_the_identity() -> None:
    blocks = covariances(4, 64, 64)
    inverses, _ = invert(blocks, 0.1)
    product = inverses.astype(np.float64) @ (blocks + 0.1 * np.eye(64))
    assert np.abs(product - np.eye(64)).max() <= 3.5e-5


@pytest.mark.parametrize("size", [2, 117])
def test_is_symmetric_to_the_bit(size: int) -> None:
    inverses, _ = invert(covariances(3, size, 50), 1e-4)
    assert np.array_equal(inverses, inverses.transpose(0, 2, 1))


def test_padding_does_not_change_the_inverse_of_what_is_padded() -> None:
    block = covariances(1, 5, 50)
    padded = np.zeros((1, 8, 8), np.float32)
    padded[:, :5, :5] = block
    assert invert(padded, 0.1)[0][:, :5, :5] == pytest.approx(invert(block, 0.1)[0], rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 30])
@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf], ids=["negative", "undefined", "infinite"])
def test_a_failed_inverse_is_flagged_and_nan(size: int, bad: float) -> None:
    blocks = covariances(4, size, 50)
    good = invert(blocks, 0.1)[0]
    blocks[1, -1, -1] = bad
    inverses, ok = invert(blocks, 0.1)
    assert ok.tolist() == [True, False, True, True]
    assert np.isnan(inverses[1]).all()
    assert np.array_equal(inverses[ok], good[ok])


def test_indefinite_and_singular_blocks_are_flagged() -> None:
    blocks = np.array([[[1, 2], [2, 1]], [[0, 0], [0, 0]], [[1, 1], [1, 1]]], np.float32)
    assert invert(blocks, 0.0)[1].tolist() == [False, False, False]
    assert invert(blocks, 0.5)[1].tolist() == [False, True, True]


@pytest.mark.parametrize("size", [1, 2])
def test_an_inverse_beyond_float32_is_flagged(size: int) -> None:
    inverses, ok = invert(np.zeros((1, size, size), np.float32), 1e-45)
    assert ok.tolist() == [False]
    assert np.isnan(inverses).all()


@pytest.mark.parametrize("damping", [math.nan, math.inf, -5.0], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_an_invalid_damping_is_flagged_and_never_raises(size: int, damping: float) -> None:
    blocks = np.broadcast_to(np.eye(size, dtype=np.float32), (2, size, size)).copy()
    inverses, ok = invert(blocks, damping)
    assert not ok.any()
    assert np.isnan(inverses).all()


@pytest.mark.parametrize("size", [1, 7])
def test_no_blocks_no_inverses(size: int) -> None:
    inverses, ok = invert(np.zeros((0, size, size), np.float32), 0.1)
    assert (inverses.shape, ok.shape) == ((0, size, size), (0,))


def test_the_blocks_given_are_not_changed() -> None:
    blocks = covariances(2, 9, 50)
    before = blocks.copy()
    invert(blocks, 0.1)
    assert np.array_equal(blocks, before)


def test_pi_is_the_root_of_the_ratio_of_mean_eigenvalues() -> None:
    assert pi(80.0, 10, 4.0, 2) == pytest.approx(2)
    assert pi(4.0, 2, 80.0, 10) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_pi_of_an_invalid_trace_is_one(bad: float) -> None:
    assert (pi(bad, 3, 2.0, 3), pi(2.0, 3, bad, 3)) == (1.0, 1.0)


def test_shares_multiply_to_the_damping_of_a_position() -> None:
    for_a, for_g = damping_shares(0.03, 16, 2.0)
    assert for_a * for_g * 16 == pytest.approx(0.03)
    assert for_a / for_g == pytest.approx(4)
    # as MindSpore does: sqrt(damping / T) for both
    assert damping_shares(0.03, 16, 1.0) == pytest.approx((math.sqrt(0.03 / 16),) * 2)
