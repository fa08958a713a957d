"""Gradient accumulation: steps of several micro batches equal steps of one large batch, without BN."""

from typing import Any

import msgspec
import numpy as np
import pytest
from mindspore import Tensor
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.optim.schedule import StepSchedule
from support import thornetworks, trainerconfig

BATCH = 12
Weights = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


class Trainee:
    """A small network trained alone, with each step divided into micro batches."""

    def __init__(self, parts: int, **changes: Any) -> None:
        model = trainerconfig.MODEL | {"numClasses": thornetworks.CLASSES}
        settings = trainerconfig.GOOD | {"model": model, "accumulationSteps": parts} | changes
        self.parts, self.network = parts, thornetworks.Chain()
        converted = msgspec.convert(settings, config.Config, strict=False)
        self.program = Program(converted, self.network, Communicator(0, 1))

    def step(self, step: int, images: NDArray[np.float32] | None = None) -> StepRecord:
        images = thornetworks.images(BATCH, seed=step) if images is None else images
        labels = np.roll(thornetworks.labels(BATCH), step)
        *before, last = zip(np.split(images, self.parts), np.split(labels, self.parts), strict=True)
        now = StepSchedule(step, 0.1, 0.1)
        for some, theirs in before:
            self.program.accumulate(Tensor(some), Tensor(theirs), now)
        return self.program.step(Tensor(last[0]), Tensor(last[1]), now, stop=False)

    def weights(self) -> Weights:
        return {parameter.name: parameter.asnumpy().copy() for parameter in self.network.trainable_params()}


ADASUM = {"algorithm": "Adasum", "adasum": {"reduce": "Delta", "ranksPerNode": 1}}


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("changes", [{}, {"lossScale": 64}, ADASUM], ids=["Momentum", "scaled", "Adasum"])
def test_micro_batches_equal_their_whole_batch(parts: int, changes: dict[str, Any]) -> None:
    whole, small = Trainee(1, **changes), Trainee(parts, **changes)
    for step in range(3):
        theirs, ours = whole.step(step), small.step(step)
        for name in ("loss", "accuracy", "gradient_norm"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4), name
    for name, value in whole.weights().items():
        np.testing.assert_allclose(small.weights()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_thor_rescales_the_whole_batchs_gradient_by_the_curvature_of_the_last_micro_batch() -> None:
    thor = {"algorithm": "THOR", "thor": trainerconfig.THOR | {"frequency": 2}}
    trainee = Trainee(3, **thor)
    first, second = trainee.step(0), trainee.step(1)
    assert first.curvature is not None
    assert trainee.program.curvature is not None
    assert (first.curvature.updated, first.curvature.failed) == (len(trainee.program.curvature.layers), 0)
    assert second.curvature is None
    assert (first.compiled, second.compiled) == (True, False)


def test_a_non_finite_micro_batch_leaves_the_weights_unchanged() -> None:
    trainee = Trainee(3)
    before, images = trainee.weights(), thornetworks.images(BATCH)
    images[0] = np.nan
    with pytest.raises(NumericsError, match="not finite"):
        trainee.step(0, images)
    for name, value in before.items():
        np.testing.assert_array_equal(trainee.weights()[name], value)


def test_a_resumed_step_has_the_same_bits() -> None:
    undisturbed = Trainee(3)
    undisturbed.step(0)
    saved = undisturbed.program.state.snapshot()
    undisturbed.step(1)
    resumed = Trainee(3)
    resumed.program.state.restore(saved)
    resumed.step(1)
    for name, value in undisturbed.weights().items():
        np.testing.assert_array_equal(resumed.weights()[name], value)
