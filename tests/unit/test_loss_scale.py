"""Dynamic loss scale: when it grows, when it shrinks, and which steps are skipped."""

from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, ops

from resnetboost_trainer.config import DynamicLossScale
from resnetboost_trainer.optim.grad_scaler import LEAST, MOST, MOST_IN_A_ROW, FixedScale, GradScaler, Scale, after


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> None:
    """MindSpore must know the device before it computes anything in this process; later tests could not set it."""
    mindspore.set_device("CPU")


def run(scale: Scale, gradients: str, growth_steps: int = 3) -> Scale:
    """The scale after steps with finite (.) or overflowed (x) gradients."""
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
def test_it_grows_after_good_steps_and_shrinks_at_once(gradients: str, expected: Scale) -> None:
    assert run(Scale(1024.0, 0), gradients) == expected


def test_it_stays_between_its_bounds() -> None:
    assert run(Scale(4.0, 0), "xxxxxx") == Scale(LEAST, 0)
    assert run(Scale(MOST / 2, 0), "." * 9) == Scale(MOST, 0)
    assert run(Scale(2 * MOST, 0), "...") == Scale(2 * MOST, 0), "one that begins above does not grow"


def test_steps_are_skipped_until_the_minimum_scale() -> None:
    scaling = GradScaler(DynamicLossScale(initial=4.0, growth_steps=100))
    assert [scaling.leaves_out(finite) for finite in (True, False, False, False, True)] == [
        False,
        True,
        True,
        False,  # no scale helps: the step has to fail
        False,
    ]
    assert scaling.scale == Scale(1.0, 1)


def test_steps_beyond_what_a_float32_counts_still_end() -> None:
    scaling = GradScaler(DynamicLossScale(initial=4.0, growth_steps=10**9))
    scaling.parameters[1].set_data(Tensor(2**24 - 2, mindspore.float32))
    assert [scaling.leaves_out(finite=True) for _ in range(3)] == [False] * 3
    assert scaling.scale == Scale(8.0, 1)


def test_the_parameters_hold_all_its_state() -> None:
    settings = DynamicLossScale(initial=2.0**16, growth_steps=4)
    ours, resumed = GradScaler(settings), GradScaler(settings)
    for finite in (True, True, False, True, True, True):
        ours.leaves_out(finite)
    for theirs, own in zip(resumed.parameters, ours.parameters, strict=True):
        theirs.set_data(Tensor(own.asnumpy()))
    for finite in (True, False, True, True):
        assert resumed.leaves_out(finite) == ours.leaves_out(finite)
        assert resumed.scale == ours.scale
    assert ours.factor.asnumpy().dtype == np.float32


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records each read or write of a parameter's values, with its kind and the parameter."""
    told: list[str] = []
    asnumpy, assign = Parameter.asnumpy, ops.assign

    def read(parameter: Parameter) -> Any:
        told.append(f"read {parameter.name}")
        return asnumpy(parameter)

    def written(parameter: Parameter, values: Tensor) -> Any:
        told.append(f"write {parameter.name}")
        return assign(parameter, values)

    monkeypatch.setattr(Parameter, "asnumpy", read)
    monkeypatch.setattr(ops, "assign", written)
    return told


def test_a_step_reads_parameters_once_and_writes_only_changes(moved: list[str]) -> None:
    """Each read or write waits for the device."""
    scaling, fixed = GradScaler(DynamicLossScale(initial=4.0, growth_steps=3)), FixedScale(1024.0)
    for finite, changed in ((True, ["steps"]), (False, ["factor", "steps"]), (False, ["factor"]), (False, [])):
        moved.clear()
        scaling.leaves_out(finite, scaling.now)
        reads = ["read loss_scale.factor", "read loss_scale.steps"]
        assert moved == [*reads, *(f"write loss_scale.{name}" for name in changed)]
    moved.clear()
    for finite in (True, False, True, True):
        fixed.leaves_out(finite, fixed.now)
    assert moved.count("write loss_scale.left_out") == 2


def test_a_fixed_scale_skips_a_limited_number_of_steps_in_a_row() -> None:
    ours = FixedScale(1024.0)
    assert not ours.leaves_out(True)
    for _ in range(2):  # a step without overflow resets the count
        assert [ours.leaves_out(finite) for finite in MOST_IN_A_ROW * [False] + [True]] == MOST_IN_A_ROW * [True] + [
            False
        ]
    assert [ours.leaves_out(False) for _ in range(MOST_IN_A_ROW - 1)] == (MOST_IN_A_ROW - 1) * [True]
    resumed = FixedScale(1024.0)
    resumed.parameters[0].set_data(Tensor(ours.parameters[0].asnumpy()))
    for scale in (ours, resumed):
        assert [scale.leaves_out(False) for _ in range(2)] == [True, False], "no scale helps: the step has to fail"
        assert scale.now == 1024
