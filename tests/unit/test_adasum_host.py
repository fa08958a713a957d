"""Adasum of one pair of vectors: closed forms, symmetries, and the whole range of float32 magnitudes."""

import itertools
import math
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from resnetboost_trainer.distributed.adasum import host, passes
from resnetboost_trainer.distributed.adasum.layout import Layout
from resnetboost_trainer.kernels import library
from support import adasumreference

Floats = NDArray[np.float32]
Array = NDArray[np.float64]

seeds = st.integers(0, 2**32 - 1)
lengths = st.floats(0.01, 100)
TOLERANCE = 100 * 2.0**-23


@pytest.fixture(scope="module", autouse=True, params=["C++", "NumPy"])
def built(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test is true of the C++ operators and of NumPy's passes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "NumPy":
            patch.setattr(library, "usable", lambda: None)
        elif library.usable() is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)("no C++ operators here; make setup builds them")
        yield


def adasum(a: ArrayLike, b: ArrayLike, sizes: list[int] | None = None) -> Floats:
    left, right = row(a), row(b)
    result: Floats = np.zeros_like(left)
    bounds = Layout(sizes or [left.size], [0]).bounds
    passes.combine(left, right, bounds, host.coefficients(scalars(a, b, sizes)), result)
    summed: Floats = result[0]
    return summed


def scalars(a: ArrayLike, b: ArrayLike, sizes: list[int] | None = None) -> Array:
    """<a, b>, |a|^2 and |b|^2 of each tensor."""
    left, right = row(a), row(b)
    bounds = Layout(sizes or [left.size], [0]).bounds
    return np.stack([*passes.products(left, right, bounds), passes.products(right, right, bounds)[1]], axis=1)


def row(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float32).reshape(1, -1)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def at_an_angle(cosine: float, a: float, b: float, seed: int) -> tuple[Floats, Floats]:
    """Two vectors of 50 numbers with the given lengths and angle between them."""
    one, other = np.linalg.qr(normal(seed, 50, 2).astype(np.float64))[0].T
    return (a * one).astype(np.float32), (b * (cosine * one + math.sqrt(1 - cosine**2) * other)).astype(np.float32)


@given(st.floats(-1, 1), lengths, lengths, seeds)
def test_norm_and_inner_product_have_closed_forms(c: float, a: float, b: float, seed: int) -> None:
    left, right = at_an_angle(c, a, b, seed)
    result = adasum(left, right).astype(np.float64)
    squares = a**2 + b**2
    norm = squares * (1 - 3 * c**2 / 4) + a * b * c**3 / 2
    assert result @ result == pytest.approx(norm, abs=TOLERANCE * squares)
    assert result @ left.astype(np.float64) == pytest.approx(
        a**2 * (1 - c**2 / 2) + a * b * c / 2, abs=TOLERANCE * squares
    )


@given(st.floats(-1, 1), lengths, lengths, seeds)
def test_cosine_and_gain_of_a_pair(c: float, a: float, b: float, seed: int) -> None:
    pair = scalars(*at_an_angle(c, a, b, seed))
    assert host.cosines(pair) == pytest.approx([c], abs=1e-5)
    mean = (a**2 + b**2 + 2 * a * b * c) / 4
    adaptive = (a**2 + b**2) * (1 - 3 * c**2 / 4) + a * b * c**3 / 2
    if mean > 1e-3 * (a**2 + b**2):
        assert host.gain(pair) == pytest.approx(math.sqrt(adaptive / mean), rel=1e-3)
    assert 0 <= host.gain(pair) < 4


@given(seeds, st.integers(-20, 20))
def test_adasum_is_homogeneous(seed: int, power: int) -> None:
    a, b = normal(seed, 2, 33)
    factor = np.float32(2.0**power)
    assert np.array_equal(adasum(factor * a, factor * b), factor * adasum(a, b))
    assert np.array_equal(adasum(-a, -b), -adasum(a, b))


@given(seeds)
def test_adasum_is_symmetric(seed: int) -> None:
    a, b = normal(seed, 2, 33)
    assert np.array_equal(adasum(a, b), adasum(b, a))


@given(seeds)
def test_adasum_commutes_with_rotation(seed: int) -> None:
    a, b = normal(seed, 2, 33)
    rotation = np.linalg.qr(normal(seed, 33, 33).astype(np.float64))[0]
    rotated = adasum(rotation @ a, rotation @ b)
    assert adasumreference.error(rotated, rotation @ adasum(a, b), [33]) < 1


@given(seeds, lengths, lengths)
def test_orthogonal_vectors_are_added_and_parallel_ones_averaged(seed: int, first: float, second: float) -> None:
    a, b = normal(seed, 2, 20)
    a[10:], b[:10] = 0, 0
    assert np.array_equal(adasum(a, b), a + b)
    parallel = np.array([first, -second], np.float32)[:, None].astype(np.float64) * normal(seed, 20)
    error = np.linalg.norm(adasum(*parallel) - parallel.mean(0))
    assert error <= TOLERANCE * np.linalg.norm(parallel)


def test_the_sum_with_itself_or_with_zero_is_the_vector() -> None:
    a = normal(0, 100)
    nothing = np.zeros_like(a)
    assert np.array_equal(adasum(a, a), a)
    assert np.array_equal(adasum(a, nothing), a) and np.array_equal(adasum(nothing, a), a)
    assert not adasum(nothing, nothing).any()
    assert not adasum(a, -a).any()


@given(seeds, st.floats(-36, 36), st.floats(-36, 36))
def test_the_sum_is_right_at_every_magnitude(seed: int, first: float, second: float) -> None:
    a, b = (normal(seed, 2, 40) * 10.0 ** np.array([[first], [second]])).astype(np.float32)
    expected = adasumreference.adasum(a.astype(np.float64), b.astype(np.float64))
    assert adasumreference.error(adasum(a, b), expected, [40]) < 1


@given(seeds, st.floats(-44, -37))
def test_subnormal_numbers_are_summed_to_their_precision(seed: int, magnitude: float) -> None:
    a, b = (normal(seed, 2, 40) * 10.0**magnitude).astype(np.float32)
    expected = adasumreference.adasum(a.astype(np.float64), b.astype(np.float64))
    unit = float(np.finfo(np.float32).smallest_subnormal)
    assert np.abs(adasum(a, b) - expected).max() <= 3 * unit + TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("length", [passes.BLOCK - 1, passes.BLOCK, passes.BLOCK + 1, 3 * passes.BLOCK + 5])
def test_scalars_are_added_up_in_float64_over_blocks(length: int) -> None:
    a, b = normal(length, 2, length)
    wide, other = a.astype(np.float64), b.astype(np.float64)
    assert scalars(a, b)[0] == pytest.approx([wide @ other, wide @ wide, other @ other], rel=1e-12)


@given(seeds, st.floats(-43, 36), st.floats(0.01, 100))
def test_scaling_by_exponents_is_exact_and_gives_norms_about_one(seed: int, magnitude: float, factor: float) -> None:
    rows = (normal(seed, 3, 8) * 10.0**magnitude).astype(np.float32)
    rows[:, :3] = (rows[:, :3].astype(np.float64) * factor).astype(np.float32)
    two = Layout([9, 15], [0, 1, 2])
    exponents = host.exponents(passes.products(rows, rows, two.bounds)[1])
    there, back = np.empty_like(rows), np.empty_like(rows)
    passes.scale(rows, two.bounds, -exponents, there)
    for columns in (slice(0, 3), slice(3, 8)):
        norm = np.linalg.norm(there[:, columns].astype(np.float64))
        assert 0.5 <= norm < 1.0001 or not rows[:, columns].any()
    passes.scale(there, two.bounds, exponents, back)
    assert np.array_equal(back, rows)


@given(seeds, st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum), st.permutations(range(5)))
def test_tensors_are_split_into_equal_parts_and_joined_again(seed: int, sizes: list[int], order: list[int]) -> None:
    dealt = Layout(sizes, order)
    values, rows = normal(seed, sum(sizes)).astype(np.float32), np.zeros((5, dealt.share), np.float32)
    dealt.spread(values, rows)
    assert np.count_nonzero(rows) == np.count_nonzero(values)
    whole = np.empty_like(values)
    dealt.collect(rows[order], whole)
    assert np.array_equal(whole, values)
    starts = np.cumsum([0, *sizes])
    products = passes.products(rows, rows, dealt.bounds)[1]
    expected = [np.square(values[k:m], dtype=np.float64).sum() for k, m in itertools.pairwise(starts)]
    np.testing.assert_allclose(products, expected, rtol=1e-12)


def test_each_tensor_has_its_own_coefficients() -> None:
    a, b = normal(1, 2, 10)
    whole = adasum(a, b, [5, 1, 4])
    assert np.array_equal(whole, [*adasum(a[:5], b[:5]), *adasum(a[5:6], b[5:6]), *adasum(a[6:], b[6:])])


def test_tensors_of_zeros_have_no_cosine() -> None:
    pair = scalars([1, 1, 0, 0, 3], [1, 1, 2, 2, -3], [2, 2, 1])
    assert host.cosines(pair) == pytest.approx([1, -1])
    assert host.cosines(scalars(np.full(3, 1e-38), np.full(3, 1e38))) == pytest.approx([1])


def test_the_gain_of_opposed_vectors_is_at_most_three() -> None:
    for seed in range(300):
        a = normal(seed, seed % 60 + 1)
        almost = -a
        almost[0] = np.nextafter(almost[0], np.float32(9))
        assert host.gain(scalars(a, -a)) == host.gain(scalars(a, almost)) == 1
    a = normal(2, 1000)
    assert host.gain(scalars(a, -a + normal(3, 1000) / 1000)) == pytest.approx(3, rel=1e-2)


def test_the_gain_is_over_all_tensors() -> None:
    """Parallel in one tensor, orthogonal in the other: the gain is |(a, b + c)| / |(a, (b + c) / 2)|."""
    pair = scalars([3, 2, 0], [3, 0, 2], [1, 2])
    assert host.gain(pair) == pytest.approx(math.sqrt((9 + 8) / (9 + 2)))


@pytest.mark.parametrize(("rows", "sizes"), [(1, [70_001]), (4, [9, 33, 0, 5000, 16]), (3, [1])])
@pytest.mark.parametrize("factor", [0.3, 1e9])
def test_both_kinds_of_passes_write_the_same_bits(rows: int, sizes: list[int], factor: float) -> None:
    """Ranks of one gang may have the operators or not."""
    bounds = Layout(sizes, list(range(rows))).bounds
    left, right = normal(sum(sizes), 2, rows, bounds[-1]).astype(np.float32)
    factors = np.full((len(sizes), 2), [0.7, factor])
    exponents = np.arange(len(sizes), dtype=np.int32) - 2

    def written() -> list[Floats]:
        sums, scaled, own = np.empty_like(left), np.empty_like(left), left.copy()
        passes.combine(left, right, bounds, factors, sums)
        passes.scale(left, bounds, exponents, scaled)
        passes.unscale(right, own, bounds, exponents)
        return [sums, scaled, own]

    ours = written()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "usable", lambda: None)
        for one, other in zip(ours, written(), strict=True):
            assert np.array_equal(one, other)
