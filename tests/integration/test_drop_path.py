"""Stochastic depth: what is left out, in which blocks, and what training and evaluation make of it."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from resnetboost_trainer.models import drop_path
from resnetboost_trainer.models.drop_path import DropPath
from support import familygradients

pytestmark = pytest.mark.usefixtures("operators")

BATCH = familygradients.BATCH


def test_the_probability_grows_evenly_from_nothing_at_the_first_block() -> None:
    np.testing.assert_allclose(drop_path.rates(0.2, 5), [0, 0.05, 0.1, 0.15, 0.2], rtol=1e-6)
    np.testing.assert_array_equal(drop_path.rates(0.2, 1), [0])


def test_each_image_loses_a_branch_with_its_probability_and_the_rest_makes_up_for_it() -> None:
    rates = drop_path.rates(0.5, 3)
    drawn = drop_path.factors(rates, 20000, (1, 2, 3))
    for row, rate in zip(drawn, rates, strict=True):
        assert set(np.unique(row)) <= {np.float32(0), np.float32(1) / (np.float32(1) - rate)}
        assert np.mean(row == 0) == pytest.approx(rate, abs=0.015)
    assert np.mean((drawn[1] == 0) & (drawn[2] == 0)) == pytest.approx(0.125, abs=0.015)  # independent of each other


def test_what_is_left_out_depends_on_the_key_alone() -> None:
    network = familygradients.network("basic")
    drops = DropPath(network, 0.5, 64, seed=7, stage="base")

    def drawn(*key: int) -> bytes:
        drops.draw(*key)
        return bytes(drops.factors.asnumpy().tobytes())

    once = [drawn(*key) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(once)) == len(once)
    assert drawn(0, 0, 0) == once[0]
    others = (DropPath(familygradients.network("basic"), 0.5, 64, *other) for other in ((8, "base"), (7, "fine")))
    for other in others:
        other.draw(0, 0, 0)
        assert other.factors.asnumpy().tobytes() != once[0]


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("kind", ["basic", "squeezing"])
def test_a_block_adds_the_scaled_branch_to_the_shortcut_or_nothing(kind: str) -> None:
    network = familygradients.network(kind)
    drops = DropPath(network, 0.5, BATCH, 0, "base")
    block = network.layer3[0].set_train(True)
    x = Tensor(np.random.default_rng(0).standard_normal((BATCH, block.conv1.weight.shape[1], 8, 8), np.float32))
    rows = np.ones(drops.factors.shape, np.float32)
    drops.factors.set_data(Tensor(rows))
    whole = block(x).asnumpy()
    rows[block.place] = np.arange(BATCH) % 2 * 2
    drops.factors.set_data(Tensor(rows))
    dropped = block(x).asnumpy()
    shortcut = block.downsample(x).asnumpy()
    even, odd = slice(0, None, 2), slice(1, None, 2)
    np.testing.assert_allclose(dropped[even], np.maximum(shortcut[even], 0), atol=1e-5)
    positive = (whole > 0) & (dropped > 0)
    branch = (whole - shortcut)[odd][positive[odd]]
    np.testing.assert_allclose((dropped - shortcut)[odd][positive[odd]], 2 * branch, atol=1e-4)
    assert not np.allclose(whole, dropped)


def dropping(kind: str) -> nn.Cell:
    network = familygradients.network(kind)
    DropPath(network, 0.5, BATCH, 0, "base").draw(3, 0, 0)
    return network


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["basic", "deep"])
def test_a_step_equals_one_with_mindspores_operators(kind: str) -> None:
    with familygradients.mindspores_operators():
        expected = familygradients.once(dropping(kind), "PyNative")
    without = familygradients.slow(kind)
    assert expected.loss != without.loss
    for mode in familygradients.MODES:
        found = familygradients.once(dropping(kind), mode)
        assert not familygradients.wrong(found, expected, familygradients.BOUND), mode


@pytest.mark.usefixtures("any_mode")
def test_evaluation_leaves_nothing_out() -> None:
    x = familygradients.batch()[0]
    expected = familygradients.network("basic").set_train(False)(x).asnumpy()
    np.testing.assert_array_equal(dropping("basic").set_train(False)(x).asnumpy(), expected)


def test_the_factors_are_no_part_of_the_network() -> None:
    """Checkpoints, exports and optimizers see the same parameters as without."""
    plain, dropped = (
        dict(cell.parameters_and_names()) for cell in (familygradients.network("basic"), dropping("basic"))
    )
    assert plain.keys() == dropped.keys()
