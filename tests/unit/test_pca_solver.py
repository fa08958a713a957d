"""P-BFGS and P-SGD steps within a subspace: float32 state, resets and rejected steps."""

from collections.abc import Callable

import numpy as np
import pytest
from mindspore import Tensor
from numpy.typing import NDArray

from resnetboost_trainer.config import LineSearch, Momentum
from resnetboost_trainer.engine import device
from resnetboost_trainer.optim.pca import quasinewton
from resnetboost_trainer.optim.pca.solver import Bfgs, Sgd, Solver

Doubles = NDArray[np.float64]
MOMENTUM = Momentum(momentum=0.9, weight_decay=0.0, nesterov=False)
SEARCH = LineSearch(contraction=0.5, sufficient_decrease=0.4, max_trials=4)
# f(w) = w^T H w / 2, with a long narrow valley.
HESSIAN = np.diag([0.5, 2.0, 6.0])
START = np.array([1.0, -2.0, 0.5])


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


def loss(w: Doubles) -> float:
    return float(w @ HESSIAN @ w / 2)


def step(solver: Solver, w: Doubles, rate: float = 0.1) -> Doubles:
    """The solver's next point."""
    taken = solver.direction(HESSIAN @ w, rate)
    found = solver.length(taken, loss(w), lambda length: loss(w + length * taken.vector))
    reached: Doubles = w + found.length * taken.vector
    return reached


def memory(solver: Solver) -> dict[str, bytes]:
    return {parameter.name: parameter.asnumpy().tobytes() for parameter in solver.state()}


def copied(to: Solver, solver: Solver) -> Solver:
    """A copy made as a checkpoint makes it."""
    for own, other in zip(to.state(), solver.state(), strict=True):
        own.set_data(other.value())
    return to


class TestBfgs:
    """P-BFGS."""

    def test_the_first_step_is_steepest_descent(self) -> None:
        taken = Bfgs(3, SEARCH).direction(HESSIAN @ START, 0.1)
        np.testing.assert_array_equal(taken.vector, -HESSIAN @ START)
        assert taken.slope == pytest.approx(-np.sum((HESSIAN @ START) ** 2))

    def test_the_learning_rate_does_not_matter(self) -> None:
        np.testing.assert_array_equal(step(Bfgs(3, SEARCH), START, 0.1), step(Bfgs(3, SEARCH), START, 9.0))

    def test_it_converges_to_the_minimum(self) -> None:
        solver, w = Bfgs(3, SEARCH), START
        for _ in range(25):
            w = step(solver, w)
        assert loss(w) < 1e-8

    def test_it_remembers_its_last_step_and_the_gradient_before_it(self) -> None:
        solver = Bfgs(3, SEARCH)
        first = step(solver, START)
        second = step(solver, first)
        inverse, last, gradient = (parameter.asnumpy() for parameter in solver.state())
        np.testing.assert_allclose(last, second - first, rtol=1e-6)
        np.testing.assert_allclose(gradient, HESSIAN @ first, rtol=1e-6)
        np.testing.assert_allclose(inverse @ (HESSIAN @ (first - START)), first - START, rtol=1e-5)

    @pytest.mark.parametrize("worse", [1e9, np.inf, np.nan])
    def test_a_rejected_step_changes_nothing(self, worse: float) -> None:
        solver = Bfgs(3, SEARCH)
        w = step(solver, step(solver, START))
        before = memory(solver)
        found = solver.length(solver.direction(np.array([0.3, -1, 2]), 0.1), 1.0, lambda length: worse)
        assert (found.length, found.evaluations) == (0, 4)
        assert memory(solver) == before
        other = copied(Bfgs(3, SEARCH), solver)
        np.testing.assert_array_equal(step(solver, w), step(other, w))

    def test_it_goes_on_from_what_a_checkpoint_holds_to_the_same_bits(self) -> None:
        solver = Bfgs(3, SEARCH)
        w = step(solver, step(solver, START))
        other = copied(Bfgs(3, SEARCH), solver)
        for _ in range(3):
            ours, theirs = step(solver, w), step(other, w)
            np.testing.assert_array_equal(ours, theirs)
            assert memory(solver) == memory(other)
            w = ours

    @pytest.mark.parametrize(
        "spoiled", [-np.eye(3), np.full((3, 3), np.inf), np.full((3, 3), np.nan)], ids=["uphill", "infinite", "nan"]
    )
    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
    def test_an_uphill_direction_resets_its_state(self, spoiled: Doubles) -> None:
        solver = Bfgs(3, SEARCH)
        solver.memory["inverse"].set_data(Tensor(spoiled.astype(np.float32)))
        taken = solver.direction(HESSIAN @ START, 0.1)
        np.testing.assert_array_equal(taken.vector, -HESSIAN @ START)
        solver.length(taken, loss(START), lambda length: loss(START + length * taken.vector))
        np.testing.assert_array_equal(solver.memory["inverse"].asnumpy(), np.eye(3))

    def test_without_a_gradient_it_stays(self) -> None:
        taken = Bfgs(3, SEARCH).direction(np.zeros(3), 0.1)
        assert not taken.vector.any()
        assert taken.slope == 0

    def test_one_dimension_will_do(self) -> None:
        solver, w = Bfgs(1, SEARCH), 4.0
        for _ in range(3):
            gradient, here = np.array([3 * w]), w
            taken = solver.direction(gradient, 0.1)
            found = solver.length(taken, 1.5 * w**2, parabola(here, taken.vector[0]))
            w += found.length * taken.vector[0]
        assert abs(w) < 1e-6


def parabola(here: float, towards: float) -> Callable[[float], float]:
    return lambda length: 1.5 * (here + length * towards) ** 2


class TestSgd:
    """P-SGD."""

    @pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "Nesterov's"])
    def test_it_is_momentum(self, nesterov: bool) -> None:
        solver = Sgd(3, Momentum(momentum=0.5, weight_decay=0.3, nesterov=nesterov))
        ours, expected, velocity = START, START, np.zeros(3)
        for _ in range(3):
            gradient = HESSIAN @ expected
            velocity = 0.5 * velocity + gradient
            expected = expected - 0.1 * (gradient + 0.5 * velocity if nesterov else velocity)
            ours = step(solver, ours)
            np.testing.assert_allclose(ours, expected, rtol=1e-6)

    def test_it_takes_the_full_step_without_a_line_search(self) -> None:
        solver = Sgd(3, Momentum(momentum=0.5, weight_decay=0.0, nesterov=False))

        def evaluate(length: float) -> float:
            raise AssertionError("it asked for a loss")

        found = solver.length(solver.direction(START, 0.1), 1.0, evaluate)
        assert (found.length, found.evaluations) == (1, 0)

    def test_it_goes_on_from_what_a_checkpoint_holds_to_the_same_bits(self) -> None:
        settings = Momentum(momentum=0.9, weight_decay=0.0, nesterov=True)
        solver = Sgd(3, settings)
        w = step(solver, step(solver, START))
        other = copied(Sgd(3, settings), solver)
        np.testing.assert_array_equal(step(other, w), step(solver, w))


def test_state_names_are_unique() -> None:
    names = [parameter.name for parameter in Bfgs(2, SEARCH).state()]
    assert names == [f"pca.{field}" for field in quasinewton.State.__struct_fields__]
    assert len({*names, *(parameter.name for parameter in Sgd(2, MOMENTUM).state())}) == 4
