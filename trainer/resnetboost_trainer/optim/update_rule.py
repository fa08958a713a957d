"""How the gradients of all ranks become one update of the weights: the interface, and the mean gradient's way."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mindspore
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.distributed.communicator import Communicator, Floats, lost
from resnetboost_trainer.distributed.reduction import Reduction, scalars_of
from resnetboost_trainer.metrics.record import Report


class Batch(NamedTuple):
    """The images (n, c, h, w) and labels (n,) of each of a rank's virtual ranks, and the gang's mean loss on the global
    batch they are part of.

    Only the last virtual rank's for a rule that does not evaluate the batch again.
    """

    parts: Sequence[tuple[Tensor, Tensor]]
    loss: float


class UpdateRule(Protocol):
    """What a step does with a rank's flat buffer. Both methods are collectives."""

    @property
    def collective_seconds(self) -> float:
        """Time of the last update that went into collectives."""
        ...

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """Return the gradients for `update` and the gang's [squared gradient norm, loss, accuracy, summed tail ...].

        Raises CommunicationError when the gang is broken.
        """
        ...

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> Report | None:
        """Change the weights, to the same bits on every rank; returns the algorithm's report."""
        ...


class MeanReduction:
    """Base of rules that take the mean gradient over all ranks."""

    collective_seconds = 0.0

    def __init__(self, parameters: Sequence[Parameter], communicator: Communicator, summed: bool = False) -> None:
        """`summed`: buckets have summed the flat buffers over the ranks already."""
        self.reduction, self.alone = Reduction(parameters, communicator.size, summed), communicator.size == 1

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """As `UpdateRule` says; the norm is that of the mean gradient."""
        try:
            gradients, scalars = self.reduction(flat)
            return gradients, scalars.asnumpy()
        except RuntimeError as error:
            if self.alone:
                raise
            raise lost(error) from error


class MeanUpdate(MeanReduction):
    """The mean gradient and one step of an optimizer of flat gradients.

    The optimizer may get gradients that other numbers follow: on a CPU a single rank's buffer is not copied.
    """

    def __init__(
        self, parameters: Sequence[Parameter], optimizer: nn.Cell, communicator: Communicator, summed: bool = False
    ) -> None:
        super().__init__(parameters, communicator, summed)
        self.optimizer = optimizer
        self.on_host = self.alone and mindspore.get_context("device_target") == "CPU"

    def reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        """As `UpdateRule` says; the norm is that of the mean gradient."""
        if self.on_host:
            return flat, scalars_of(flat.asnumpy(), self.reduction.count)
        return super().reduce(flat)

    def update(self, gradients: Tensor, batch: Batch, learning_rate: float) -> None:
        """As `UpdateRule` says."""
        self.optimizer(gradients, Tensor(learning_rate, mindspore.float32))
