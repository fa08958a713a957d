"""THOR's C++ operators: against MindSpore's operators and NumPy, and to the same bits with any number of threads."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.distributed.reduction import NORM_SQUARED, scalars_of
from resnetboost_trainer.kernels import arrays, library
from resnetboost_trainer.models.assign import Part, Writer
from resnetboost_trainer.models.layers import conv
from resnetboost_trainer.optim.thor import layers
from resnetboost_trainer.optim.thor.inverse import invert
from resnetboost_trainer.optim.thor.precondition import Preconditioner
from support.examples import examples
from support.familygradients import mindspores_operators

pytestmark = pytest.mark.usefixtures("operators")

Floats = NDArray[np.float32]


def call(name: str, *tensors: NDArray[np.generic]) -> None:
    found = library.usable()
    assert found is not None
    arrays.call(found, name, *tensors)


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# Covariances.


def patches(x: Floats, window: list[list[int]]) -> NDArray[np.float64]:
    """im2col by definition, for (kernel, stride, dilation, pad, outputs) of rows and of columns: (c kh kw, n h' w')."""
    (height, *_, rows), (width, *_, columns) = window
    found = np.zeros((x.shape[1], height, width, len(x), rows, columns))
    places = [np.add.outer(np.arange(k) * d - pad, np.arange(out) * s) for k, s, d, pad, out in window]
    for i, j, row, column in np.ndindex(height, width, rows, columns):
        y, z = places[0][i, row], places[1][j, column]
        if 0 <= y < x.shape[2] and 0 <= z < x.shape[3]:
            found[:, i, j, :, row, column] = x[:, :, y, z].T
    return found.reshape(x.shape[1] * height * width, -1)


def side() -> st.SearchStrategy[list[int]]:
    """kernel, stride, dilation, pad, outputs: also windows that see nothing of the image."""
    return st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.integers(1, 9)).map(
        list
    )


@examples(150)
@given(
    window=st.tuples(side(), side()).map(list),
    shape=st.tuples(st.integers(1, 35), st.integers(1, 6), st.integers(1, 7), st.integers(1, 7)),
    size=st.integers(1, 40),
)
def test_covariances_of_any_window_are_those_of_its_patches(
    window: list[list[int]], shape: tuple[int, int, int, int], size: int
) -> None:
    x = normal(*shape)
    matrix = patches(x, window)
    count = -(-len(matrix) // size)
    expected = np.zeros((count, size, size))
    for k in range(count):
        part = matrix[k * size : (k + 1) * size]
        expected[k, : len(part), : len(part)] = 0.5 * part @ part.T
    found = np.full((count, size, size), np.nan, np.float32)
    form = np.array([[*window[0], *window[1], 1, count, size]], np.int32)
    call("covariances", form, np.array([0.5], np.float32), x, found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * max(1.0, float(np.abs(expected).max())))


def test_long_sums_keep_their_precision() -> None:
    x = 1 + 0.01 * normal(40, 2, 200, 200)
    found = np.empty((1, 2, 2), np.float32)
    side = [1, 1, 1, 0, 200]
    call("covariances", np.array([[*side, *side, 1, 1, 2]], np.int32), np.ones(1, np.float32), x, found)
    rows = x.transpose(1, 0, 2, 3).reshape(2, -1).astype(np.float64)
    np.testing.assert_allclose(found[0], rows @ rows.T, rtol=3e-7)
    total = np.empty(1, np.float32)
    call("weighted_squares", x, np.ones(1, np.float32), total)
    np.testing.assert_allclose(total[0], (x.astype(np.float64) ** 2).sum(), rtol=3e-7)


def test_what_is_not_finite_stays_so() -> None:
    x = normal(3, 2, 4, 4)
    x[1, 1, 2, 2] = np.inf
    found, side = np.zeros((1, 18, 18), np.float32), [3, 1, 1, 1, 4]
    call("covariances", np.array([[*side, *side, 1, 1, 18]], np.int32), np.ones(1, np.float32), x, found)
    assert not np.isfinite(found[0, 9:, 9:]).any(axis=1).all()
    assert np.isfinite(found[0, :9, :9]).all()


# Directions.


class Layers(nn.Cell):  # type: ignore[misc, unused-ignore]
    """Conv2d and Dense only, in several forms, one of them twice; a batch normalization keeps its plain gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.CellList([conv.Conv2d(6, 10, 3, 1, 1) for _ in range(2)])
        self.norm = nn.BatchNorm2d(10)
        self.groups = nn.Conv2d(6, 9, 3, group=3)
        self.pixel = nn.Conv2d(6, 5, 1, has_bias=True)
        self.dense = nn.Dense(50, 23)


def preconditioner(block_size: int) -> Preconditioner:
    network = Layers()
    found, _ = layers.find(network, block_size)
    return Preconditioner(found, layers.ordered(found, network.trainable_params()))


def fill(one: Preconditioner) -> None:
    """Different inverses for every block, and zeros outside of the weights' axes as after an update."""
    writer = Writer(one.state(), most=100)
    inverses = {}
    for k, (stack, _) in enumerate(one.places):
        form = stack.form
        own = []
        for factor, cut in enumerate(form.factors):
            values = normal(form.groups, cut.count, cut.size, cut.size, seed=10 * k + factor)
            left = cut.count * cut.size - cut.dimension
            if left:
                values[:, -1, cut.size - left :, :] = 0
                values[:, -1, :, cut.size - left :] = 0
            own.append(values.reshape(-1, cut.size, cut.size))
        inverses[k] = own
    writer.write(one.parts(inverses, first=0))


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("block_size", [1, 7, 16, 128])
@pytest.mark.parametrize("following", [0, 3])
def test_directions_are_those_of_mindspores_operators(block_size: int, following: int) -> None:
    ours = preconditioner(block_size)
    with mindspores_operators():
        theirs = preconditioner(block_size)
    assert ours.fused
    assert not theirs.fused
    fill(ours)
    with mindspores_operators():
        fill(theirs)
    gradient = normal(ours.count + following, seed=5)
    found, expected = (one(Tensor(gradient)).asnumpy() for one in (ours, theirs))
    np.testing.assert_array_equal(found[ours.count :], gradient[ours.count :])
    found, expected = found[: ours.count], expected[: ours.count]
    assert np.abs(expected - gradient[: ours.count]).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * float(np.abs(expected).max()))


def test_a_network_with_other_layers_keeps_mindspores_operators() -> None:
    network = nn.SequentialCell(nn.Dense(4, 3), nn.LayerNorm((3,)))
    found, _ = layers.find(network, 128)
    assert not Preconditioner(found, layers.ordered(found, network.trainable_params())).fused


# Writing.


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("whose", ["ours", "MindSpore's"])
def test_parts_are_written_where_compiled_graphs_read_them_and_nothing_else_changes(whose: str) -> None:
    shapes = (4, 3), (5,)
    parameters = [Parameter(Tensor(np.full(shape, 7, np.float32)), name=f"p{k}") for k, shape in enumerate(shapes)]
    reader = _Sum(parameters)
    before = float(reader().asnumpy())
    if whose == "ours":
        writer = Writer(parameters, most=3)
    else:
        with mindspores_operators():
            writer = Writer(parameters, most=3)
    for count in (2, 1):  # another number of parts is written by the same graph
        first, second = normal(2, 3, seed=count), normal(5, seed=count + 2)
        writer.write([Part(0, 6, first), Part(1, 0, second)][:count])
        np.testing.assert_array_equal(parameters[0].asnumpy()[2:], first)
        np.testing.assert_array_equal(parameters[0].asnumpy()[:2], np.full((2, 3), 7))
        if count == 2:
            np.testing.assert_array_equal(parameters[1].asnumpy(), second)
        expected = sum(float(parameter.asnumpy().sum()) for parameter in parameters)
        assert float(reader().asnumpy()) == pytest.approx(expected, abs=1e-4)
        assert expected != pytest.approx(before)


class _Sum(nn.Cell):  # type: ignore[misc, unused-ignore]
    def __init__(self, parameters: list[Parameter]) -> None:
        super().__init__()
        self.first, self.second = parameters

    def construct(self) -> Tensor:
        return self.first.sum() + self.second.sum()


# The scalars of a single rank.


@pytest.mark.parametrize("whose", ["ours", "NumPy's"])
def test_a_single_ranks_scalars_are_the_norm_and_what_follows_the_gradient(whose: str) -> None:
    def scalars(flat: Floats) -> Floats:
        if whose == "ours":
            return scalars_of(flat, len(flat) - 4)
        with mindspores_operators():
            return scalars_of(flat, len(flat) - 4)

    flat = normal(70_001)
    found = scalars(flat)
    assert found.dtype == np.float32
    assert found[NORM_SQUARED] == pytest.approx((flat[:-4].astype(np.float64) ** 2).sum(), rel=1e-6)
    np.testing.assert_array_equal(found[1:], flat[-4:])
    for bad in (np.nan, np.inf, -np.inf, 1e30):
        for place in (0, 69_000, 69_996):
            wrong = flat.copy()
            wrong[place] = bad
            assert not np.isfinite(scalars(wrong)[NORM_SQUARED])
    flat[-4:] = np.nan
    assert np.isfinite(scalars(flat)[NORM_SQUARED])


# Bits, and arrays that do not fit.

BITS = """
import hashlib
import numpy as np
from resnetboost_trainer.kernels import arrays, library
from resnetboost_trainer.optim.thor.inverse import invert
operators, draw = library.usable(), np.random.default_rng(0).standard_normal
digest = hashlib.sha256()
x = draw((33, 20, 9, 8), np.float32)
blocks = np.empty((5, 36, 36), np.float32)
form = np.array([[3, 1, 1, 1, 9, 3, 1, 1, 1, 8, 1, 5, 36]], np.int32)
arrays.call(operators, "covariances", form, np.ones(1, np.float32), x, blocks)
digest.update(blocks.tobytes())
inverses, ok = invert(np.concatenate([blocks] * 4), 0.1)
assert ok.all()
digest.update(inverses.tobytes())
gradient, direction = draw(3 * 180 * 36 + 70_000, np.float32), np.empty(3 * 180 * 36 + 70_000, np.float32)
forms = np.array([[3, 36, 1, 36, 180, 5, 36]], np.int32)
arrays.call(operators, "thor_direction", gradient, forms, inverses[:15].copy(), inverses[:3].copy(), direction)
digest.update(direction.tobytes())
clipped, numbers = np.empty_like(direction), np.array([len(direction)], np.int32)
arrays.call(operators, "clip_gradient", direction, np.ones(1, np.float32), numbers, clipped)
digest.update(clipped.tobytes())
print(digest.hexdigest())
"""


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    digests = set()
    for threads in ("1", "2", "5"):
        done = subprocess.run(
            [sys.executable, "-c", BITS],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_a_blocks_inverse_does_not_depend_on_the_blocks_beside_it() -> None:
    """Ranks invert different blocks, and another number of ranks inverts them in other groups."""
    x = normal(19, 24, 60)
    blocks = x @ x.transpose(0, 2, 1) / 60
    dampings = np.linspace(0.1, 2, len(blocks))
    together, _ = invert(blocks, dampings)
    for first, end in ((0, 1), (3, 12), (18, 19)):
        np.testing.assert_array_equal(invert(blocks[first:end], dampings[first:end])[0], together[first:end])


def test_arrays_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    x, side = normal(2, 4, 3, 3), [3, 1, 1, 1, 3]
    good = np.array([[*side, *side, 1, 2, 18]], np.int32)
    one, blocks = np.ones(1, np.float32), np.zeros((2, 18, 18), np.float32)
    for place, wrong in ((0, 0), (1, 0), (2, -1), (3, -1), (4, 0), (10, 3), (10, 0), (11, 1), (12, 17), (12, 0)):
        form = good.copy()
        form[0, place] = wrong
        with pytest.raises(RuntimeError):
            call("covariances", form, one, x, blocks)
    for tensors in (
        (good, one, x[0], blocks),
        (good, one, x, blocks[:1]),
        (good, np.ones(2, np.float32), x, blocks),
        (good.astype(np.float32), one, x, blocks),
        (good, one, x.astype(np.float64), blocks),
    ):
        with pytest.raises(RuntimeError):
            call("covariances", *tensors)
    assert not blocks.any()
    gradient, forms = np.ones(24, np.float32), np.array([[1, 4, 1, 4, 6, 2, 3]], np.int32)
    of_inputs, of_outputs, direction = normal(2, 3, 3), normal(1, 4, 4), np.zeros(24, np.float32)
    call("thor_direction", gradient, forms, of_inputs, of_outputs, direction.copy())
    for wrong_direction in (
        (gradient[:23].copy(), forms, of_inputs, of_outputs, np.zeros(23, np.float32)),
        (gradient, forms, of_inputs, of_outputs, np.zeros(25, np.float32)),
        (gradient, forms, of_inputs[:1].copy(), of_outputs, direction),
        (gradient, forms, of_inputs, normal(1, 5, 5), direction),
        (gradient, np.array([[1, 4, 2, 4, 6, 2, 3]], np.int32), of_inputs, of_outputs, direction),
        (gradient, np.array([[0, 4, 1, 4, 6, 2, 3]], np.int32), of_inputs, of_outputs, direction),
    ):
        with pytest.raises(RuntimeError):
            call("thor_direction", *wrong_direction)
    assert not direction.any()
    parameter, values = np.zeros(5, np.float32), np.ones(4, np.float32)
    for row in ([1, 0, 2], [-1, 0, 2], [0, 2, 4], [0, -1, 2], [0, 0, 5]):
        table = np.array([row], np.int32)
        with pytest.raises(RuntimeError):
            call("write_parts", values, table, parameter, table.copy())
    assert not parameter.any()
    for dampings in (np.ones(2, np.float32), np.ones(3)):
        with pytest.raises(RuntimeError):
            call("invert_blocks", blocks, dampings, blocks.copy())
    with pytest.raises(ValueError, match="row-major"):
        call("invert_blocks", blocks.transpose(0, 2, 1), np.ones(2), blocks.copy())
