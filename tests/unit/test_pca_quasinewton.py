"""Quasi-Newton step of the PCA stage on functions with a known minimum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from resnetboost_trainer.optim.pca import quasinewton
from resnetboost_trainer.optim.pca.quasinewton import Rule, State

Doubles = NDArray[np.float64]
RULE = Rule(rho=0.5, sigma=0.4, most=5)


def hessian(dimensions: int, seed: int = 0) -> Doubles:
    """A symmetric matrix with eigenvalues from 1/2 to 8."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.standard_normal((dimensions, dimensions)))
    product: Doubles = rotation @ np.diag(np.geomspace(0.5, 8, dimensions)) @ rotation.T
    return product


def descend(h: Doubles, start: Doubles, steps: int) -> tuple[Doubles, State]:
    """Minimise w^T H w / 2 by exact line searches from `start`."""
    w, state = start, quasinewton.first(len(start))
    for _ in range(steps):
        gradient = h @ w
        state = quasinewton.informed(state, gradient)
        towards, slope = quasinewton.direction(state, gradient)
        step = -slope / (towards @ h @ towards) * towards
        state, w = quasinewton.stepped(state, gradient, step), w + step
    return w, quasinewton.informed(state, h @ w)


@pytest.mark.parametrize("dimensions", [1, 2, 5, 9])
def test_a_quadratic_is_solved_in_as_many_steps_as_it_has_dimensions(dimensions: int) -> None:
    h = hessian(dimensions)
    w, state = descend(h, np.ones(dimensions), dimensions)
    assert np.abs(w).max() < 1e-9
    np.testing.assert_allclose(state.inverse, np.linalg.inv(h), atol=1e-7)


@given(st.integers(2, 8), st.integers(0, 2**31))
def test_the_matrix_satisfies_the_secant_equation_and_is_positive_definite(dimensions: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    h = hessian(dimensions, seed)
    before, step = generator.standard_normal(dimensions), generator.standard_normal(dimensions)
    state = quasinewton.stepped(quasinewton.first(dimensions), before, step)
    state = quasinewton.informed(state, before + h @ step)
    np.testing.assert_allclose(state.inverse @ (h @ step), step, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(state.inverse, state.inverse.T)
    assert np.linalg.eigvalsh(state.inverse).min() > 0


def test_negative_curvature_does_not_update_the_matrix() -> None:
    state = quasinewton.stepped(quasinewton.first(3), np.zeros(3), np.array([1.0, 0, 0]))
    assert quasinewton.informed(state, np.array([-1.0, 2, 0])) is state
    assert quasinewton.informed(state, np.zeros(3)) is state


def test_the_slope_is_downhill() -> None:
    _, state = descend(hessian(6), np.ones(6), 3)
    gradient = np.random.default_rng(1).standard_normal(6)
    towards, slope = quasinewton.direction(state, gradient)
    assert slope == pytest.approx(gradient @ towards)
    assert slope < 0


@pytest.mark.parametrize("trial", range(5))
def test_the_first_length_with_a_sufficient_decrease_is_accepted(trial: int) -> None:
    """The loss falls just enough at that length, and just not enough at the longer ones."""
    loss, slope, asked = 0.9, -0.25, []

    def evaluate(length: float) -> float:
        asked.append(length)
        wanted = loss + RULE.sigma * length * slope
        return wanted - 1e-9 if length == RULE.rho**trial else wanted

    found = quasinewton.search(loss, slope, RULE, evaluate)
    assert (found.length, found.evaluations) == (RULE.rho**trial, trial + 1)
    assert asked == [RULE.rho**k for k in range(trial + 1)]


@pytest.mark.parametrize("worse", [0.9, float("nan"), float("inf")])
def test_without_a_sufficient_decrease_the_step_is_rejected(worse: float) -> None:
    found = quasinewton.search(0.9, -0.25, RULE, lambda length: worse)
    assert (found.length, found.evaluations) == (0, RULE.most)
    _, state = descend(hessian(3), np.ones(3), 2)
    assert quasinewton.stepped(state, np.ones(3), np.zeros(3)) is state


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_it_stays_positive_definite_for_random_gradients(dimensions: int, seed: int) -> None:
    """Random gradients, as from a new batch each time, with rejected steps in between."""
    generator = np.random.default_rng(seed)
    state = quasinewton.first(dimensions)
    for rejected in generator.random(12) < 0.3:
        gradient = generator.standard_normal(dimensions)
        informed = quasinewton.informed(state, gradient)
        np.testing.assert_array_equal(informed.inverse, informed.inverse.T)
        towards, slope = quasinewton.direction(informed, gradient)
        values = np.linalg.eigvalsh(informed.inverse)
        assert slope < 0
        assert values[0] > -1e-12 * values[-1]
        state = state if rejected else quasinewton.stepped(informed, gradient, 0.55 * towards)


def test_without_a_gradient_there_is_no_direction() -> None:
    towards, slope = quasinewton.direction(quasinewton.first(3), np.zeros(3))
    assert not towards.any()
    assert slope == 0
    assert quasinewton.informed(quasinewton.first(3), np.ones(3)).inverse.tolist() == np.eye(3).tolist()
