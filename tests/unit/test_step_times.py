"""Step times of a profile: phases, forward against backward, and the layer of each operator."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnetboost_trainer.profiling import step_times
from resnetboost_trainer.profiling.step_times import GRADIENT, OPTIMIZER, REDUCTION, Step, Window

CONVOLUTION = "Default/network-ResNet/conv1-Conv2d/fastest-_OneDNN/Custom-op0"
LOSS = "Default/loss-CrossEntropy/ReduceMean-op0"
CONSTANT = "Gradients/Default/loss-CrossEntropy/Grad_ReduceMean/RealDiv-op0"
OF_WEIGHTS = "Gradients/Default/network-ResNet/conv1-Conv2d/fastest-_OneDNN/Grad_Custom/Custom-op0"
BUFFER = "Default/Concat-op0"
OF_A_BUCKET = "Default/buckets-Buckets/AllReduce-op0"


class Execution(NamedTuple):
    name: str
    begun_ns: int
    ended_ns: int
    inputs: str = "4x3"

    @property
    def kind(self) -> str:
        return self.name.rpartition("/")[2].partition("-")[0]

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.begun_ns) / 1e9


def step(begun_ns: int, *, scale: int = 1) -> Step:
    """A step with 100 ns for the gradient, 20 for the reduction, 30 for the optimizer, and 30 before them."""
    parts = {"data": 30e-9, GRADIENT: 100e-9 * scale, REDUCTION: 20e-9, OPTIMIZER: 30e-9}
    borders = [begun_ns + 30, begun_ns + 30 + 100 * scale, begun_ns + 50 + 100 * scale, begun_ns + 80 + 100 * scale]
    windows = [Window(*window) for window in zip((GRADIENT, REDUCTION, OPTIMIZER), borders, borders[1:], strict=False)]
    return Step(sum(parts.values()) + 5e-9, parts, windows)


RECORDED = [
    Execution("Default/Cast-op0", 10, 20),  # while the batch was being made
    Execution(CONSTANT, 35, 40),
    Execution(CONVOLUTION, 40, 60),
    Execution(LOSS, 62, 70),
    Execution(OF_WEIGHTS, 80, 110),
    Execution(OF_A_BUCKET, 110, 112),
    Execution(BUFFER, 115, 125),
    Execution("Default/AllReduce-op0", 131, 145),
    Execution("Default/Custom-op0", 152, 170),
]


def test_forward_ends_with_the_last_operator_of_the_network_or_the_loss() -> None:
    found = step_times.times([step(1000, scale=2)], [step(0)], RECORDED)
    seconds = {part.name: part.seconds.mean for part in found.parts}
    # 40 of the gradient's 100 ns in the recorded step, so 40 % of its time in the unrecorded one.
    assert seconds == pytest.approx(
        {"data": 30e-9, "forward": 80e-9, "backward": 120e-9, "reduction": 20e-9, "optimizer": 30e-9}
    )
    assert found.step_seconds.mean > sum(seconds.values())
    inside = {part.name: part.in_operators for part in found.parts}
    assert inside["forward"] == pytest.approx(33 / 40)
    assert inside["backward"] == pytest.approx(42 / 60)
    assert inside["data"] is None


def test_an_operator_belongs_to_the_phase_it_began_in() -> None:
    found = step_times.times([step(1000)], [step(0)], RECORDED)
    parts = {(operator.part, operator.name) for operator in found.operators}
    assert parts == {
        ("forward", "RealDiv"),
        ("forward", "Conv2d.fastest in C++"),
        ("forward", "ReduceMean"),
        ("backward", "Conv2d.fastest in C++"),
        ("backward", "AllReduce"),
        ("backward", "Concat"),
        ("reduction", "AllReduce"),
        ("optimizer", "update of the weights in C++"),
    }


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ("32x32x4x4 32 32", "BatchNorm in C++"),
        ("32x32x4x4 64x32x3x3", "Conv2d in C++"),
        ("32x1x8x8 66 1048576 32x64 16x1x3x3", "Trunk in C++"),
        ("", "operator in C++"),
    ],
)
def test_an_operator_outside_of_its_layer_has_a_name_too(inputs: str, name: str) -> None:
    """MindSpore moves operators that equal layers share out of their scopes: Default/Custom-op0."""
    moved = Execution("Default/Custom-op0", 42, 50)._replace(inputs=inputs)
    found = step_times.times([step(1000)], [step(0)], [Execution(CONVOLUTION, 40, 60), moved])
    assert ("forward", name) in {(operator.part, operator.name) for operator in found.operators}


def test_without_a_boundary_the_gradient_is_one_phase() -> None:
    found = step_times.times([step(1000)], [step(0)], [Execution("Custom-op0", 40, 60)])
    assert [part.name for part in found.parts] == ["data", "gradient", "reduction", "optimizer"]


def test_without_a_trace_there_are_phases_only() -> None:
    found = step_times.times([step(0)], [step(1000)], [])
    assert [part.name for part in found.parts] == ["data", "gradient", "reduction", "optimizer"]
    assert not found.operators and all(part.in_operators is None for part in found.parts)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 50), st.sampled_from("ab")), max_size=30))
def test_operators_of_single_steps_add_up(runs: list[tuple[int, int, str]]) -> None:
    executions = sorted(
        (Execution(f"Default/{name}-op0", at, at + long) for at, long, name in runs), key=lambda e: e[1]
    )
    steps = [step(0), step(1000)]
    windows = [window for recorded in steps for window in recorded.windows]
    found = step_times.operators(step_times.placed(windows, executions), len(steps))
    inside = [run for run in executions if any(w.begun_ns <= run.begun_ns < w.ended_ns for w in windows)]
    assert sum(operator.calls for operator in found) * len(steps) == pytest.approx(len(inside))
    assert sum(operator.seconds for operator in found) * len(steps) == pytest.approx(sum(run.seconds for run in inside))
    assert [operator.seconds for operator in found] == sorted((o.seconds for o in found), reverse=True)
