"""A training step in the principal subspace of earlier weights and, gently, outside of it; top to bottom.

Li et al. 2022 (arXiv 2103.11154), §3. With g the gradient over all ranks and P (k, M) the components,

    g_k = P g,   r = g - P^T g_k
    s   = t d: d by BFGS in k dimensions and t by Armijo's rule (P-BFGS), or a step of Momentum SGD by g_k (P-SGD)
    v  <- gamma v + r
    w  <- w + P^T s - alpha v

The loss of a trial is that of the same batch, with BN as in training; BN's running statistics, the solver's memory and
the weights are afterwards as if no trial had been made. Weight decay is part of the loss, so that the line search and
the gradient mean the same function. Every decision is by numbers that went through a collective.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import msgspec
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer.config import Momentum, Pca
from resnetboost_trainer.distributed.communicator import Communicator, Floats, lost
from resnetboost_trainer.engine.gradient import Batch
from resnetboost_trainer.models.layers.running_stats import Statistics
from resnetboost_trainer.optim.pca.objective import Objective, Place, Weights
from resnetboost_trainer.optim.pca.quasinewton import Doubles
from resnetboost_trainer.optim.pca.solver import Bfgs, Direction, Sgd, Solver
from resnetboost_trainer.optim.pca.subspace import Columns, Expand, Project


class Searched(msgspec.Struct, frozen=True):
    """How a step within the subspace went, the same on every rank but for the seconds.

    `length` is what of the direction was gone, 0 when no trial was good enough; `evaluations` of the loss; `share` of
    the squared gradient that lies within the subspace; `explained` of the snapshots' variance by the components.
    """

    length: float
    evaluations: int
    share: float
    explained: float
    seconds: float

    @property
    def outcome(self) -> str:
        """full, shortened or rejected."""
        return "full" if self.length == 1 else "shortened" if self.length > 0 else "rejected"


class Basis(msgspec.Struct, frozen=True):
    """This rank's columns (k, width) of the components of snapshots of M `numbers`, and what they explain (0..1)."""

    columns: Floats
    numbers: int
    explained: float


class Inside(nn.Cell):
    """Mean gradient (M,) -> w (M,), g (M,) with the decay, and the gang's [P g, decay's loss, |g|^2] (k + 2,)."""

    def __init__(self, weights: Weights, columns: Columns) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.project, self.scale = weights, Project(columns), 1.0 / columns.ranks
        self.reduce = ops.AllReduce() if columns.ranks > 1 else None

    def construct(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start = self.weights()
        whole = gradient + self.weights.decay * start
        squared = ops.square(whole).sum().reshape(1)
        scalars = ops.concat([self.weights.penalty(start), squared]) * self.scale
        told = ops.concat([self.project(whole), scalars])
        return start, whole, told if self.reduce is None else self.reduce(told)


class Outside(nn.Cell):
    """([d, g_k] (2, k), g) -> D = P^T d (M,), while the residual's momentum v goes on by g - P^T g_k."""

    def __init__(self, columns: Columns, momentum: float) -> None:
        super().__init__(auto_prefix=False)
        self.expand, self.momentum = Expand(columns), momentum
        start = Tensor(np.zeros(columns.numbers, np.float32))
        self.residual = Parameter(start, name="pca.residual", requires_grad=False)

    def construct(self, within: Tensor, whole: Tensor) -> Tensor:
        direction, inside = ops.unstack(self.expand(within))  # an index takes the CPU 60 times as long
        ops.assign(self.residual, self.momentum * self.residual + whole - inside)
        return direction


class Descent:
    """Steps of all ranks together; the weights and what is remembered are the same bits on every rank."""

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
        """`parameters` in the order of the components' columns and of the flat gradient."""
        self.communicator, self.explained = communicator, basis.explained
        self.columns = columns = Columns(basis.columns, basis.numbers, communicator.rank, communicator.size)
        dimensions = len(basis.columns)
        bfgs = settings.solver == "BFGS"
        self.solver: Solver = Bfgs(dimensions, settings.line_search) if bfgs else Sgd(dimensions, momentum)
        weights = Weights(parameters, momentum.weight_decay)
        self.inside, self.outside = Inside(weights, columns), Outside(columns, settings.residual.momentum)
        self.place, self.objective = Place(weights), Objective(network, loss, communicator.size)
        self.statistics = Statistics(network)
        self.zero = _number(0.0)
        self.rate = _number(settings.residual.learning_rate)

    def step(self, gradient: Tensor, batch: Batch, learning_rate: float) -> Searched:
        """One step by the mean gradient (M,). A collective. Raises CommunicationError when the gang is broken."""
        started = time.perf_counter()
        try:
            return self._step(gradient, batch, learning_rate, started)
        except RuntimeError as error:
            if self.communicator.size == 1:
                raise
            raise lost(error) from error

    def _step(self, gradient: Tensor, batch: Batch, learning_rate: float, started: float) -> Searched:
        start, whole, told = self.inside(gradient)
        *within, decay, squared = told.asnumpy().astype(np.float64)
        inner = np.array(within)
        taken = self._agreed(self.solver.direction(inner, learning_rate))
        direction = self.outside(_rows(taken.vector, inner), whole)
        line = Line(self, start, direction, batch)
        found = self.solver.length(taken, batch.loss + decay, line.loss)
        line.leave()
        towards = direction if found.length > 0 else start  # a rejected one may be infinite, and 0 of it no number
        self.place(start, towards, _number(found.length), self.outside.residual, self.rate)
        return Searched(
            length=found.length,
            evaluations=found.evaluations,
            share=float(inner @ inner / squared) if squared > 0 else 0.0,
            explained=self.explained,
            seconds=time.perf_counter() - started,
        )

    def state(self) -> list[Parameter]:
        """What a checkpoint has to hold."""
        return [self.outside.residual, *self.solver.state()]

    def _agreed(self, own: Direction) -> Direction:
        """Rank 0's: another processor's rounding must not make a rank accept what the others reject."""
        told = self.communicator.broadcast(np.array([*own.vector, own.slope], np.float32)).astype(np.float64)
        return Direction(told[:-1], float(told[-1]))


class Line:
    """The loss of a batch along a direction from where the weights are."""

    def __init__(self, descent: Descent, start: Tensor, direction: Tensor, batch: Batch) -> None:
        self.descent, self.start, self.direction, self.batch = descent, start, direction, batch
        self.looked = False

    def loss(self, length: float) -> float:
        """With the weights so far along the line, where they stay. A collective."""
        descent = self.descent
        if not self.looked:
            descent.statistics.keep()
            self.looked = True
        length_ = _number(length)
        penalty = descent.place(self.start, self.direction, length_, descent.outside.residual, descent.zero)
        descent.objective.set_train(True)
        return float(descent.objective(self.batch.images, self.batch.labels, penalty).asnumpy()[0])

    def leave(self) -> None:
        """Put back BN's running statistics, if anybody has looked."""
        if self.looked:
            self.descent.statistics.restore()


def _rows(*rows: Doubles) -> Tensor:
    return Tensor(np.stack(rows).astype(np.float32))


def _number(value: float) -> Tensor:
    return Tensor([value], mindspore.float32)
