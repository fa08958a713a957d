"""One training step as the compiled graphs do it, with its parts timed; what comes before and after is the loop's."""

import time

import mindspore
import msgspec
import numpy as np
from mindspore import Tensor

from resnetboost_trainer import loss, model
from resnetboost_trainer.config import Config
from resnetboost_trainer.distributed import Communicator, Floats, lost
from resnetboost_trainer.optimizers.momentum import Momentum
from resnetboost_trainer.state import State
from resnetboost_trainer.step import Gradient, Reduction
from resnetboost_trainer.verdict import NumericsError

# Places in the reduction's scalars; after them comes one compute time per rank.
NORM_SQUARED, LOSS, ACCURACY, STOP, SECONDS = range(5)

# Times the loss of a network that knows nothing, ln(classes): no spike that training comes back from gets there.
DIVERGED = 1000.0


class Outcome(msgspec.Struct, frozen=True):
    """What a step brought. Means over the gang but for the three times, which are this rank's, in seconds.

    `stop`: somebody was asked to stop, and the whole gang knows it. `slowest_*`: of the step before, by the time
    before the all-reduce; after it all ranks show the same.
    """

    loss: float
    accuracy: float
    gradient_norm: float
    stop: bool
    gradient_seconds: float
    collective_seconds: float
    update_seconds: float
    slowest_rank: int
    slowest_compute_seconds: float


class Program:
    """Network, loss, optimizer and the graphs over them. Ranks differ only in BN's running statistics."""

    def __init__(self, config: Config, channels: int, communicator: Communicator) -> None:
        self.communicator, self.classes = communicator, config.model.num_classes
        self.network = model.build(config.model.name, config.model.num_classes, channels, config.seed)
        parameters = self.network.trainable_params()
        self.gradient = Gradient(self.network, loss.CrossEntropy(config.label_smoothing), parameters)
        self.reduction = Reduction(parameters, communicator.size)
        self.optimizer = Momentum(parameters, config.momentum)
        self.state = State(self.network, self.optimizer.state(), communicator)
        self._seconds = 0.0

    def step(self, images: Tensor, labels: Tensor, learning_rate: float, stop: bool) -> Outcome:
        """Gradient, reduction, finite check, update. A collective.

        Raises NumericsError before a bad update can reach the weights, CommunicationError when the gang is broken.
        """
        begun = time.perf_counter()
        self.gradient.set_train(True)
        flat = self.gradient(images, labels, Tensor(self._tail(stop)))
        computed = time.perf_counter()
        gradients, scalars = self._reduce(flat)
        reduced = time.perf_counter()
        _check_numbers(scalars, self.classes, learning_rate)
        self.optimizer(gradients, Tensor(learning_rate, mindspore.float32))
        updated = time.perf_counter()
        self._seconds = computed - begun
        slowest = int(scalars[SECONDS:].argmax())
        return Outcome(
            loss=float(scalars[LOSS]),
            accuracy=float(scalars[ACCURACY]),
            gradient_norm=float(np.sqrt(scalars[NORM_SQUARED])),
            stop=bool(scalars[STOP] > 0),
            gradient_seconds=computed - begun,
            collective_seconds=reduced - computed,
            update_seconds=updated - reduced,
            slowest_rank=slowest,
            slowest_compute_seconds=float(scalars[SECONDS + slowest]),
        )

    def _tail(self, stop: bool) -> Floats:
        """What this rank tells the others in passing: [stop, its last compute time in a place of its own]."""
        tail = np.zeros(1 + self.communicator.size, np.float32)
        tail[0] = stop
        tail[1 + self.communicator.rank] = self._seconds
        return tail

    def _reduce(self, flat: Tensor) -> tuple[Tensor, Floats]:
        try:
            gradients, scalars = self.reduction(flat)
            return gradients, scalars.asnumpy()
        except RuntimeError as error:
            raise lost(error) from error


def _check_numbers(scalars: Floats, classes: int, learning_rate: float) -> None:
    """Refuse what is not finite, and a loss that has left for good: with BN it may grow for ever and stay finite."""
    remedy = f"at learning rate {learning_rate:.4g}; lower learningRate.peak or lengthen learningRate.warmupEpochs"
    if not np.isfinite(scalars[LOSS]):
        raise NumericsError(f"the loss is not finite {remedy}")
    if not np.isfinite(scalars[NORM_SQUARED]):
        raise NumericsError(f"a gradient is not finite {remedy}")
    if scalars[LOSS] > DIVERGED * np.log(classes):
        raise NumericsError(f"training has diverged to a loss of {scalars[LOSS]:.3g} {remedy}")
