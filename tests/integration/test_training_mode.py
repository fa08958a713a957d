"""A step trains in training mode whatever was evaluated before it: batch normalization's statistics go on."""

import itertools

import msgspec
import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.models.layers.norm import BatchNorm
from resnetboost_trainer.optim.schedule import StepSchedule
from support import trainerconfig

FREQUENCY = 2


class Normalized(nn.Cell):  # type: ignore[misc, unused-ignore]
    """(n, 1, 4, 4) -> logits (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = BatchNorm(1), nn.Dense(16, 10)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).reshape(x.shape[0], -1))


def statistics(evaluates: bool) -> list[NDArray[np.float32]]:
    """The running mean and variance after each of four steps, two of them with an update of the curvature."""
    settings = trainerconfig.GOOD | {"algorithm": "THOR", "thor": trainerconfig.THOR | {"frequency": FREQUENCY}}
    network, found = Normalized(), []
    program = Program(msgspec.convert(settings, config.Config), network, Communicator(0, 1))
    generator = np.random.default_rng(0)
    for step in range(2 * FREQUENCY):
        images = Tensor(1 + generator.standard_normal((8, 1, 4, 4), np.float32))
        record = program.step(images, Tensor(np.arange(8, dtype=np.int32)), StepSchedule(step, 0.0, 0.1), stop=False)
        assert (record.curvature is not None) == (step % FREQUENCY == 0)
        found.append(np.stack([network.norm.moving_mean.asnumpy(), network.norm.moving_variance.asnumpy()]).copy())
        if evaluates:
            network.set_train(False)
            network(images)
    return found


def test_an_evaluation_between_steps_changes_nothing() -> None:
    device.prepare()
    undisturbed, evaluated = statistics(evaluates=False), statistics(evaluates=True)
    np.testing.assert_array_equal(evaluated, undisturbed)
    for before, after in itertools.pairwise(undisturbed):
        assert (before != after).all(), "the statistics did not move"
