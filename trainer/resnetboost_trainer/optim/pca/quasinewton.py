"""A quasi-Newton step in the k dimensions of a subspace: BFGS on the inverse and Armijo's rule; pure, in float64.

Li et al. 2022 (arXiv 2103.11154), algorithm 1 (P-BFGS); Nocedal & Wright 2006, §6.1 and §3.1.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

# Of |y| |s|, below which the curvature along a step is no more than noise: an update would not stay positive definite.
LEAST_CURVATURE = 1e-10


class State(msgspec.Struct, frozen=True):
    """`inverse` (k, k) of the Hessian so far; the last step (k,) and the gradient (k,) before it, zeros at first."""

    inverse: Doubles
    step: Doubles
    gradient: Doubles


class Rule(msgspec.Struct, frozen=True):
    """Armijo's: `most` lengths 1, rho, rho^2, ...; the loss has to fall by at least sigma of what the slope says."""

    rho: float
    sigma: float
    most: int


class Search(msgspec.Struct, frozen=True):
    """What a line search came to: the accepted length, 0 for none, and how often the loss was looked at."""

    length: float
    evaluations: int


def first(dimensions: int) -> State:
    """Before the first step: the inverse is the identity, the direction that of steepest descent."""
    return State(np.eye(dimensions), np.zeros(dimensions), np.zeros(dimensions))


def informed(state: State, gradient: Doubles) -> State:
    """The state that knows the gradient after its last step.

    With s the step, y the change of the gradient and q = y^T s:  B <- V^T B V + s s^T / q,  V = I - y s^T / q; left as
    it is where q is not positive, which keeps B symmetric positive definite.
    """
    change = gradient - state.gradient
    curvature = float(change @ state.step)
    if curvature <= LEAST_CURVATURE * float(np.linalg.norm(change) * np.linalg.norm(state.step)):
        return state
    shear = np.eye(len(gradient)) - np.outer(change, state.step) / curvature
    inverse = shear.T @ state.inverse @ shear + np.outer(state.step, state.step) / curvature
    return msgspec.structs.replace(state, inverse=(inverse + inverse.T) / 2)


def direction(state: State, gradient: Doubles) -> tuple[Doubles, float]:
    """Where to go, (k,), and the slope of the loss there, negative unless the gradient vanishes."""
    found: Doubles = -state.inverse @ gradient
    return found, float(gradient @ found)


def search(loss: float, slope: float, rule: Rule, evaluate: Callable[[float], float]) -> Search:
    """The longest step of the rule at which the loss has fallen enough; a loss that is not finite has not."""
    for trial in range(rule.most):
        length = rule.rho**trial
        if evaluate(length) < loss + rule.sigma * length * slope:
            return Search(length, trial + 1)
    return Search(0.0, rule.most)


def stepped(state: State, gradient: Doubles, step: Doubles) -> State:
    """The state after a step from where the gradient was that; a rejected one, of zeros, leaves it as it was."""
    return msgspec.structs.replace(state, step=step, gradient=gradient) if step.any() else state
