"""The dynamic loss scale: when it grows, when it shrinks, and which steps it leaves out."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from resnetboost_trainer.config import DynamicLossScale
from resnetboost_trainer.lossscale import LEAST, MOST, MOST_IN_A_ROW, Fixed, Scale, Scaling, after


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> None:
    """To be said before MindSpore computes anything in this process, or no later test could say it."""
    mindspore.set_device("CPU")


def run(scale: Scale, gradients: str, growth_steps: int = 3) -> Scale:
    """After steps whose gradients are finite (.) or not (x)."""
    for gradient in gradients:
        scale = after(scale, gradient == ".", growth_steps)
    return scale


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ("..", Scale(1024.0, 2)),
        ("...", Scale(2048.0, 0)),
        ("......", Scale(4096.0, 0)),
        ("x", Scale(512.0, 0)),
        ("..x", Scale(512.0, 0)),
        ("..x..", Scale(512.0, 2)),
        ("..x...", Scale(1024.0, 0)),
        ("xxx", Scale(128.0, 0)),
    ],
)
def test_it_grows_by_steps_in_a_row_and_shrinks_at_once(gradients: str, expected: Scale) -> None:
    assert run(Scale(1024.0, 0), gradients) == expected


def test_it_stays_between_its_bounds() -> None:
    assert run(Scale(4.0, 0), "xxxxxx") == Scale(LEAST, 0)
    assert run(Scale(MOST / 2, 0), "." * 9) == Scale(MOST, 0)
    assert run(Scale(2 * MOST, 0), "...") == Scale(2 * MOST, 0), "one that begins above does not grow"


def test_steps_are_left_out_until_the_scale_is_the_least() -> None:
    scaling = Scaling(DynamicLossScale(initial=4.0, growth_steps=100))
    assert [scaling.leaves_out(finite) for finite in (True, False, False, False, True)] == [
        False,
        True,
        True,
        False,  # no scale helps: the step has to fail
        False,
    ]
    assert scaling.scale == Scale(1.0, 1)


def test_steps_beyond_what_a_float32_counts_still_end() -> None:
    scaling = Scaling(DynamicLossScale(initial=4.0, growth_steps=10**9))
    scaling.parameters[1].set_data(Tensor(2**24 - 2, mindspore.float32))
    assert [scaling.leaves_out(finite=True) for _ in range(3)] == [False] * 3
    assert scaling.scale == Scale(8.0, 1)


def test_its_parameters_are_all_its_state() -> None:
    settings = DynamicLossScale(initial=2.0**16, growth_steps=4)
    ours, resumed = Scaling(settings), Scaling(settings)
    for finite in (True, True, False, True, True, True):
        ours.leaves_out(finite)
    for theirs, own in zip(resumed.parameters, ours.parameters, strict=True):
        theirs.set_data(Tensor(own.asnumpy()))
    for finite in (True, False, True, True):
        assert resumed.leaves_out(finite) == ours.leaves_out(finite)
        assert resumed.scale == ours.scale
    assert ours.factor.asnumpy().dtype == np.float32


def test_a_fixed_scale_stays_and_leaves_out_so_many_steps_in_a_row() -> None:
    ours = Fixed(1024.0)
    assert not ours.leaves_out(True)
    for _ in range(2):  # a step that fits begins the count anew
        assert [ours.leaves_out(finite) for finite in MOST_IN_A_ROW * [False] + [True]] == MOST_IN_A_ROW * [True] + [
            False
        ]
    assert [ours.leaves_out(False) for _ in range(MOST_IN_A_ROW - 1)] == (MOST_IN_A_ROW - 1) * [True]
    resumed = Fixed(1024.0)
    resumed.parameters[0].set_data(Tensor(ours.parameters[0].asnumpy()))
    for scale in (ours, resumed):
        assert [scale.leaves_out(False) for _ in range(2)] == [True, False], "no scale helps: the step has to fail"
        assert scale.now == 1024
