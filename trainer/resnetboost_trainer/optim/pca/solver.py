"""Solvers for a step within the subspace: BFGS with a line search, and Momentum SGD.

Their state is kept in float32 parameters, so that a resumed run continues from the same bits.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
from mindspore import Parameter, Tensor

from resnetboost_trainer.config import LineSearch, Momentum
from resnetboost_trainer.models.assign import write
from resnetboost_trainer.optim.pca import quasinewton
from resnetboost_trainer.optim.pca.quasinewton import Doubles, Rule, Search, State


class Direction(msgspec.Struct, frozen=True):
    """A search direction (k,) and the loss's slope along it, at most 0."""

    vector: Doubles
    slope: float


class Solver(Protocol):
    """Computes the direction of a step, then its length."""

    def direction(self, gradient: Doubles, learning_rate: float) -> Direction:
        """Return the direction for the gradient (k,) within the subspace."""
        ...

    def length(self, taken: Direction, loss: float, evaluate: Callable[[float], float]) -> Search:
        """Return the length of the step along the direction, from a point with that loss."""
        ...

    def state(self) -> list[Parameter]:
        """Return the state to save in checkpoints."""
        ...


class Bfgs:
    """P-BFGS: a quasi-Newton direction and the longest step that Armijo's rule accepts."""

    def __init__(self, dimensions: int, settings: LineSearch) -> None:
        self.rule = Rule(settings.contraction, settings.sufficient_decrease, settings.max_trials)
        start = quasinewton.first(dimensions)
        self.memory = {name: _parameter(name, getattr(start, name)) for name in State.__struct_fields__}
        self._gradient, self._informed = start.gradient, start

    def direction(self, gradient: Doubles, learning_rate: float) -> Direction:
        """Return the quasi-Newton direction; the learning rate is ignored, since the step has its own length."""
        informed = quasinewton.informed(self._state(), gradient)
        found, slope = quasinewton.direction(informed, gradient)
        if not slope < 0:  # rounding has made the inverse indefinite: restart with steepest descent
            informed = quasinewton.first(len(gradient))
            found, slope = quasinewton.direction(informed, gradient)
        self._gradient, self._informed = gradient, informed
        return Direction(found, slope)

    def length(self, taken: Direction, loss: float, evaluate: Callable[[float], float]) -> Search:
        """Return the length that Armijo's rule accepts; a rejected step leaves the state unchanged."""
        found = quasinewton.search(loss, taken.slope, self.rule, evaluate)
        if found.length > 0:
            self._remember(quasinewton.stepped(self._informed, self._gradient, found.length * taken.vector))
        return found

    def state(self) -> list[Parameter]:
        """See `Solver`."""
        return list(self.memory.values())

    def _state(self) -> State:
        return State(**{name: value.asnumpy().astype(np.float64) for name, value in self.memory.items()})

    def _remember(self, state: State) -> None:
        for name, parameter in self.memory.items():
            write(parameter, getattr(state, name))


class Sgd:
    """P-SGD: Momentum SGD by the gradient within the subspace."""

    def __init__(self, dimensions: int, settings: Momentum) -> None:
        self.settings = settings
        self.velocity = _parameter("velocity", np.zeros(dimensions))

    def direction(self, gradient: Doubles, learning_rate: float) -> Direction:
        """See `Solver`."""
        mu = self.settings.momentum
        velocity = mu * self.velocity.asnumpy().astype(np.float64) + gradient
        write(self.velocity, velocity)
        found = -learning_rate * (gradient + mu * velocity if self.settings.nesterov else velocity)
        return Direction(found, float(gradient @ found))

    def length(self, taken: Direction, loss: float, evaluate: Callable[[float], float]) -> Search:
        """Return 1, the whole direction, for any loss."""
        return Search(1.0, 0)

    def state(self) -> list[Parameter]:
        """See `Solver`."""
        return [self.velocity]


def _parameter(name: str, values: Doubles) -> Parameter:
    return Parameter(Tensor(values.astype(np.float32)), name=f"pca.{name}", requires_grad=False)
