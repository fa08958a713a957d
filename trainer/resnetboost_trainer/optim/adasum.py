"""Algorithm Adasum: the mean within a node, an adaptive sum of gradients or of changes over the nodes."""

import logging
import math
from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed.adasum.adaptive_sum import AdaptiveSum, SumStatistics
from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.distributed.reduction import TAIL, Reduction
from resnetboost_trainer.metrics.algorithm import AlgorithmMetrics
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.metrics.series import SeriesFactory
from resnetboost_trainer.optim.algorithm import Algorithm, BuildContext, Parts, lower_rate
from resnetboost_trainer.optim.sgd import Momentum
from resnetboost_trainer.optim.thor import algorithm as thor
from resnetboost_trainer.optim.thor.report import CurvatureMetrics
from resnetboost_trainer.optim.update_rule import Batch

log = logging.getLogger(__name__)


class Change(Momentum):
    """Momentum that returns the change of the weights, flat, instead of making it; velocity is updated."""

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """Shape (parameters,) -> (parameters,)."""
        parts = ops.split(gradients, self.sizes)
        changes = []
        for k in range(len(self.sizes)):
            changes.append((learning_rate * self.direction(k, parts[k])).reshape(-1))
        return ops.concat(changes)


class Apply(nn.Cell):
    """Subtracts a flat change from the weights."""

    def __init__(self, momentum: Momentum) -> None:
        super().__init__(auto_prefix=False)
        self.parameters, self.shapes, self.sizes = momentum.parameters, momentum.shapes, momentum.sizes
        self.subtract = ops.AssignSub()

    def construct(self, change: Tensor) -> Tensor:
        """Shape (parameters,)."""
        parts = ops.split(change, self.sizes)
        for k in range(len(self.sizes)):
            self.subtract(self.parameters[k], parts[k].reshape(self.shapes[k]))
        return change


class AdasumUpdate:
    """The mean within a node, and over the nodes an adaptive sum: of gradients, or of the optimizer's changes."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        optimizer: nn.Cell,
        communicator: Communicator,
        ranks_per_node: int,
        apply: Apply | None,
    ) -> None:
        """`apply` for an optimizer that returns its change; without it the optimizer takes the sum. A collective.

        Raises CommunicationError when the gang is broken.
        """
        self.local, self.optimizer, self.apply = Reduction(parameters, 1), optimizer, apply
        self.communicator = communicator
        self.sum = AdaptiveSum([parameter.size for parameter in parameters], ranks_per_node, communicator)
        self.collective_seconds = 0.0
        what, nodes = ("gradients" if apply is None else "changes"), communicator.size // ranks_per_node
        log.info("Adasum of the %s of %d nodes; ranks averaged in each: %d", what, nodes, ranks_per_node)

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """As `UpdateRule` says; the squared norm is the mean of those of the ranks' own gradients."""
        gradients, own = self.local(flat)
        scalars = self.communicator.sum(own.asnumpy()).copy()
        scalars[:TAIL] /= self.communicator.size
        if self.sum.node.size > 1 and np.isfinite(scalars).all():
            gradients = Tensor(self.sum.node_mean(gradients.asnumpy()))
        return gradients, scalars

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> SumStatistics:
        """As `UpdateRule` says."""
        summed = self._update(gradients, Tensor(learning_rate, mindspore.float32))
        self.collective_seconds = summed.across_seconds
        return summed

    def _update(self, gradients: Tensor, rate: Tensor) -> SumStatistics:
        if self.apply is None:
            whole, summed = self.sum.across(gradients.asnumpy())
            self.optimizer(Tensor(whole), rate)
            return summed
        whole, summed = self.sum.across(self.optimizer(gradients, rate).asnumpy())
        self.apply(Tensor(whole))
        return summed


class AdasumMetrics(AlgorithmMetrics):
    """Series and columns of adaptive sums."""

    REPORT = SumStatistics
    COLUMNS = ("adasum_cosine", "adasum_cosine_min", "adasum_gain", "adasum_seconds")

    def __init__(self, series: SeriesFactory) -> None:
        text = "Cosine of the angle between summed vectors, by tensor: the mean of a step."
        self.cosine = series.gauge("adasum_cosine", text)
        self.cosine_min = series.gauge("adasum_cosine_min", "The least such cosine of a step.")
        text = "Norm of the adaptive sum over that of the mean: 1 is what averaging does, the number of nodes a sum."
        self.gain = series.gauge("adasum_gain", text)
        text = "A level of an adaptive sum, with its wait: node, fold, 1, 2, ..., gather."
        self.level_seconds = series.histogram_by("level", "adasum_level_seconds", text)

    @staticmethod
    def applies(config: Config) -> bool:
        """As `AlgorithmMetrics` says."""
        return config.adasum is not None

    def observe(self, report: SumStatistics, compiled: bool) -> None:
        """As `AlgorithmMetrics` says."""
        self.cosine.set(report.cosine)
        self.cosine_min.set(report.cosine_min)
        self.gain.set(report.gain)
        for level, seconds in report.seconds.items():
            if not compiled:
                self.level_seconds.observe(level, seconds)

    @staticmethod
    def row(report: SumStatistics) -> Row:
        """As `AlgorithmMetrics` says."""
        row: Row = {"adasum_gain": report.gain, "adasum_seconds": sum(report.seconds.values())}
        if not math.isnan(report.cosine):
            row |= {"adasum_cosine": report.cosine, "adasum_cosine_min": report.cosine_min}
        return row


def _build(context: BuildContext) -> Parts:
    config, communicator = context.config, context.communicator
    assert config.adasum is not None, "an Adasum stage has the block"
    kfac = thor.curvature(context)
    parameters = context.parameters if kfac is None else kfac.parameters
    of_changes, ranks_per_node = config.adasum.reduce == "Delta", config.adasum.ranks_per_node
    momentum = (Change if of_changes else Momentum)(parameters, config.momentum)
    optimizer = momentum if kfac is None else kfac.optimizer(momentum)
    rule = AdasumUpdate(parameters, optimizer, communicator, ranks_per_node, Apply(momentum) if of_changes else None)
    shared = [] if kfac is None else kfac.state()
    own = momentum.state()
    return Parts(
        parameters=parameters,
        update_rule=rule,
        advice=lower_rate if kfac is None else thor.raise_damping,
        state=shared if of_changes else [*own, *shared],
        node_state=own if of_changes else (),  # each node continues with a momentum of its own
        ranks_per_node=ranks_per_node if of_changes else 1,
        optional_state=() if kfac is None else kfac.optional_state(),
        curvature=kfac,
    )


def _state_of(config: Config) -> str:
    assert config.adasum is not None, "an Adasum stage has the block"
    name = f"Adasum of {'gradients' if config.adasum.reduce == 'Gradient' else 'changes'}"
    return name if config.thor is None else f"{name} by {thor.state_of(config)}"


ADASUM = Algorithm(build=_build, state_of=_state_of, metrics=(AdasumMetrics, CurvatureMetrics))
