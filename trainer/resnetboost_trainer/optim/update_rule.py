"""How the gradients of all ranks become one update of the weights, one class for each way."""

import logging
from collections.abc import Sequence
from typing import Protocol

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.distributed.adasum.adaptive_sum import AdaptiveSum, Summed
from resnetboost_trainer.distributed.adasum.delta import Apply
from resnetboost_trainer.distributed.communicator import Communicator, Floats, lost
from resnetboost_trainer.engine.gradient import TAIL, Batch, Reduction
from resnetboost_trainer.optim.pca.descent import Descent, Searched

log = logging.getLogger(__name__)


class Combination(Protocol):
    """What a step does with a rank's flat buffer. Both are collectives."""

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """What `update` takes, and the gang's [squared gradient norm, loss, accuracy, summed tail ...].

        Raises CommunicationError when the gang is broken.
        """
        ...

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> Summed | Searched | None:
        """Change the weights, to the same bits on every rank; says how an adaptive sum or a line search went."""
        ...


class _Mean:
    """The mean gradient over all ranks; `summed`, as buckets do it: the flat buffers are the ranks' sum already."""

    def __init__(self, parameters: Sequence[Parameter], communicator: Communicator, summed: bool = False) -> None:
        self.reduction, self.alone = Reduction(parameters, communicator.size, summed), communicator.size == 1

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """As `Combination` says; the norm is the mean gradient's."""
        try:
            gradients, scalars = self.reduction(flat)
            return gradients, scalars.asnumpy()
        except RuntimeError as error:
            if self.alone:
                raise
            raise lost(error) from error


class Average(_Mean):
    """The mean gradient and one step of the optimizer."""

    def __init__(
        self, parameters: Sequence[Parameter], optimizer: nn.Cell, communicator: Communicator, summed: bool = False
    ) -> None:
        super().__init__(parameters, communicator, summed)
        self.optimizer = optimizer

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> None:
        """As `Combination` says."""
        self.optimizer(gradients, Tensor(learning_rate, mindspore.float32))


class Within(_Mean):
    """The mean gradient and one step in the principal subspace, which may look at the batch's loss again."""

    def __init__(
        self, parameters: Sequence[Parameter], descent: Descent, communicator: Communicator, summed: bool = False
    ) -> None:
        super().__init__(parameters, communicator, summed)
        self.descent = descent

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> Searched:
        """As `Combination` says."""
        return self.descent.step(gradients, batch, learning_rate)


class Adaptive:
    """The mean inside of a node, and over the nodes an adaptive sum: of gradients, or of the optimizer's changes."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        optimizer: nn.Cell,
        communicator: Communicator,
        ranks_per_node: int,
        apply: Apply | None,
    ) -> None:
        """`apply` for an optimizer that returns its change; without it the optimizer is given the sum. A collective.

        Raises CommunicationError when the gang is broken.
        """
        self.local, self.optimizer, self.apply = Reduction(parameters, 1), optimizer, apply
        self.communicator = communicator
        self.sum = AdaptiveSum([parameter.size for parameter in parameters], ranks_per_node, communicator)
        what, nodes = ("gradients" if apply is None else "changes"), communicator.size // ranks_per_node
        log.info("Adasum of the %s of %d nodes; ranks averaged in each: %d", what, nodes, ranks_per_node)

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """As `Combination` says; the squared norm is the mean of those of the ranks' own gradients."""
        gradients, own = self.local(flat)
        scalars = self.communicator.sum(own.asnumpy()).copy()
        scalars[:TAIL] /= self.communicator.size
        if self.sum.node.size > 1 and np.isfinite(scalars).all():
            gradients = Tensor(self.sum.node_mean(gradients.asnumpy()))
        return gradients, scalars

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> Summed:
        """As `Combination` says."""
        rate = Tensor(learning_rate, mindspore.float32)
        if self.apply is None:
            whole, summed = self.sum.across(gradients.asnumpy())
            self.optimizer(Tensor(whole), rate)
            return summed
        whole, summed = self.sum.across(self.optimizer(gradients, rate).asnumpy())
        self.apply(Tensor(whole))
        return summed
