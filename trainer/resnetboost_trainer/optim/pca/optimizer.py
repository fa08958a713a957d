"""A training step within the principal subspace of earlier weights, plus a small one along the residual.

Li et al. 2022 (arXiv 2103.11154), §3. With g the gradient over all ranks and P (k, M) the components,

    g_k = P g,   r = g - P^T g_k
    s   = t d: d by BFGS in k dimensions and t by Armijo's rule (P-BFGS), or a step of Momentum SGD by g_k (P-SGD)
    v  <- gamma v + r
    w  <- w + P^T s - alpha v

A trial's loss uses the same batch, with BN in training mode; afterwards BN's running statistics, the solver's memory
and the weights are as if there had been no trial. Weight decay is part of the loss, so that line search and gradient
use the same function. All decisions use numbers from a collective.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer.config import Momentum, Pca
from resnetboost_trainer.distributed.communicator import Communicator, lost
from resnetboost_trainer.models.layers.running_stats import Statistics
from resnetboost_trainer.optim.pca.objective import Objective, Place, Weights
from resnetboost_trainer.optim.pca.quasinewton import Doubles
from resnetboost_trainer.optim.pca.report import SubspaceStep
from resnetboost_trainer.optim.pca.solver import Bfgs, Direction, Sgd, Solver
from resnetboost_trainer.optim.pca.subspace import Basis, Columns, Expand, Project
from resnetboost_trainer.optim.update_rule import Batch


class Projection(nn.Cell):
    """Projects the mean gradient (M,): -> w (M,), g with decay (M,), the gang's [P g, decay's loss, |g|^2] (k + 2,)."""

    def __init__(self, weights: Weights, columns: Columns) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.project, self.scale = weights, Project(columns), 1.0 / columns.ranks
        self.reduce = ops.AllReduce() if columns.ranks > 1 else None

    def construct(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start = self.weights()
        whole = gradient + self.weights.decay * start
        squared = ops.square(whole).sum().reshape(1)
        scalars = ops.concat([self.weights.penalty(start), squared]) * self.scale
        sums = ops.concat([self.project(whole), scalars])
        return start, whole, sums if self.reduce is None else self.reduce(sums)


class Residual(nn.Cell):
    """Expands ([d, g_k] (2, k), g) -> D = P^T d (M,), and updates the residual's momentum v by g - P^T g_k."""

    def __init__(self, columns: Columns, momentum: float) -> None:
        super().__init__(auto_prefix=False)
        self.expand, self.momentum = Expand(columns), momentum
        start = Tensor(np.zeros(columns.numbers, np.float32))
        self.momentum_buffer = Parameter(start, name="pca.residual", requires_grad=False)

    def construct(self, within: Tensor, whole: Tensor) -> Tensor:
        direction, inside = ops.unstack(self.expand(within))  # an index takes the CPU 60 times as long
        ops.assign(self.momentum_buffer, self.momentum * self.momentum_buffer + whole - inside)
        return direction


class SubspaceOptimizer:
    """Performs a stage's steps in the subspace; weights and state are the same bits on every rank."""

    def __init__(
        self,
        network: nn.Cell,
        loss: Callable[..., Any],
        parameters: Sequence[Parameter],
        settings: Pca,
        momentum: Momentum,
        basis: Basis,
        communicator: Communicator,
    ) -> None:
        """`parameters` are in the order of the components' columns and of the flat gradient."""
        self.communicator, self.explained = communicator, basis.explained
        self.columns = columns = Columns(basis.columns, basis.numbers, communicator.rank, communicator.size)
        dimensions = len(basis.columns)
        bfgs = settings.solver == "BFGS"
        self.solver: Solver = Bfgs(dimensions, settings.line_search) if bfgs else Sgd(dimensions, momentum)
        weights = Weights(parameters, momentum.weight_decay)
        self.projection = Projection(weights, columns)
        self.residual = Residual(columns, settings.residual.momentum)
        self.place, self.objective = Place(weights), Objective(network, loss, communicator.size)
        self.statistics = Statistics(network)
        self.zero = _number(0.0)
        self.rate = _number(settings.residual.learning_rate)

    def step(self, gradient: Tensor, batch: Batch, learning_rate: float) -> SubspaceStep:
        """Perform one step with the mean gradient (M,). A collective. Raises CommunicationError if a rank is lost."""
        started = time.perf_counter()
        try:
            return self._step(gradient, batch, learning_rate, started)
        except RuntimeError as error:
            if self.communicator.size == 1:
                raise
            raise lost(error) from error

    def _step(self, gradient: Tensor, batch: Batch, learning_rate: float, started: float) -> SubspaceStep:
        start, whole, sums = self.projection(gradient)
        *within, decay, squared = sums.asnumpy().astype(np.float64)
        inner = np.array(within)
        taken = self._agreed(self.solver.direction(inner, learning_rate))
        direction = self.residual(_rows(taken.vector, inner), whole)
        line = Line(self, start, direction, batch)
        found = self.solver.length(taken, batch.loss + decay, line.loss)
        line.leave()
        towards = direction if found.length > 0 else start  # a rejected direction may be infinite, and 0 times it nan
        self.place(start, towards, _number(found.length), self.residual.momentum_buffer, self.rate)
        return SubspaceStep(
            length=found.length,
            evaluations=found.evaluations,
            share=float(inner @ inner / squared) if squared > 0 else 0.0,
            explained=self.explained,
            seconds=time.perf_counter() - started,
        )

    def state(self) -> list[Parameter]:
        """Return the state to save in checkpoints."""
        return [self.residual.momentum_buffer, *self.solver.state()]

    def _agreed(self, own: Direction) -> Direction:
        """Return the leader's direction: other processors' rounding must not make ranks accept different steps."""
        agreed = self.communicator.broadcast(np.array([*own.vector, own.slope], np.float32)).astype(np.float64)
        return Direction(agreed[:-1], float(agreed[-1]))


class Line:
    """The loss of a batch along a direction from the current weights."""

    def __init__(self, optimizer: SubspaceOptimizer, start: Tensor, direction: Tensor, batch: Batch) -> None:
        self.optimizer, self.start, self.direction, self.batch = optimizer, start, direction, batch
        self.evaluated = False

    def loss(self, length: float) -> float:
        """Move the weights to `length` along the direction and return the loss there. A collective."""
        optimizer = self.optimizer
        if not self.evaluated:
            optimizer.statistics.keep()
            self.evaluated = True
        length_ = _number(length)
        penalty = optimizer.place(
            self.start, self.direction, length_, optimizer.residual.momentum_buffer, optimizer.zero
        )
        optimizer.objective.set_train(True)
        parts = [optimizer.objective(images, labels, penalty) for images, labels in self.batch.parts]
        return sum(float(part.asnumpy()[0]) for part in parts) / len(parts)

    def leave(self) -> None:
        """Restore BN's running statistics if a trial changed them."""
        if self.evaluated:
            self.optimizer.statistics.restore()


def _rows(*rows: Doubles) -> Tensor:
    return Tensor(np.stack(rows).astype(np.float32))


def _number(value: float) -> Tensor:
    return Tensor([value], mindspore.float32)
