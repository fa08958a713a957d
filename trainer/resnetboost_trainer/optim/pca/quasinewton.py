"""Quasi-Newton steps in the k dimensions of a subspace: BFGS on the inverse and Armijo's rule; pure, in float64.

Li et al. 2022 (arXiv 2103.11154), algorithm 1 (P-BFGS); Nocedal & Wright 2006, §6.1 and §3.1.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

# Share of |y| |s| below which the curvature along a step is noise: an update would not stay positive definite.
LEAST_CURVATURE = 1e-10


class State(msgspec.Struct, frozen=True):
    """BFGS state: `inverse` (k, k) of the Hessian; last step (k,) and the gradient (k,) before it, initially zeros."""

    inverse: Doubles
    step: Doubles
    gradient: Doubles


class Rule(msgspec.Struct, frozen=True):
    """Armijo's rule: tries `most` lengths 1, rho, rho^2, ...; the loss must fall by sigma times length times slope."""

    rho: float
    sigma: float
    most: int


class Search(msgspec.Struct, frozen=True):
    """Result of a line search: the accepted length, 0 for none, and the number of evaluations of the loss."""

    length: float
    evaluations: int


def first(dimensions: int) -> State:
    """Return the initial state: the inverse is the identity, so the first direction is steepest descent."""
    return State(np.eye(dimensions), np.zeros(dimensions), np.zeros(dimensions))


def informed(state: State, gradient: Doubles) -> State:
    """Update the inverse with the gradient after the last step (BFGS).

    With s the step, y the change of the gradient and q = y^T s:  B <- V^T B V + s s^T / q,  V = I - y s^T / q; B is
    unchanged if q is not positive, which keeps it symmetric positive definite.
    """
    change = gradient - state.gradient
    curvature = float(change @ state.step)
    if curvature <= LEAST_CURVATURE * float(np.linalg.norm(change) * np.linalg.norm(state.step)):
        return state
    shear = np.eye(len(gradient)) - np.outer(change, state.step) / curvature
    inverse = shear.T @ state.inverse @ shear + np.outer(state.step, state.step) / curvature
    return msgspec.structs.replace(state, inverse=(inverse + inverse.T) / 2)


def direction(state: State, gradient: Doubles) -> tuple[Doubles, float]:
    """Return the search direction (k,) and the loss's slope along it, negative unless the gradient vanishes."""
    found: Doubles = -state.inverse @ gradient
    return found, float(gradient @ found)


def search(loss: float, slope: float, rule: Rule, evaluate: Callable[[float], float]) -> Search:
    """Return the longest step that the rule accepts; a loss that is not finite is rejected."""
    for trial in range(rule.most):
        length = rule.rho**trial
        if evaluate(length) < loss + rule.sigma * length * slope:
            return Search(length, trial + 1)
    return Search(0.0, rule.most)


def stepped(state: State, gradient: Doubles, step: Doubles) -> State:
    """Return the state after a step from a point with that gradient; unchanged for a rejected step, all zeros."""
    return msgspec.structs.replace(state, step=step, gradient=gradient) if step.any() else state
