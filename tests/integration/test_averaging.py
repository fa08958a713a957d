"""Moving average of a stage's weights: its value, no effect on training, saved and resumed."""

from typing import Any

import msgspec
import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint.state import MODEL
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.optim import ema
from resnetboost_trainer.optim.ema import AVERAGE
from resnetboost_trainer.optim.pca.subspace import Basis
from resnetboost_trainer.optim.schedule import StepSchedule
from support import pcareference, thornetworks, trainerconfig

DECAY = 0.15
ALGORITHMS: dict[str, dict[str, Any]] = {
    "Momentum": {},
    "THOR": {"thor": trainerconfig.THOR | {"frequency": 2}},
    "Adasum": {"adasum": {"reduce": "Delta", "ranksPerNode": 1}},
    "PCA": {
        "pca": {
            "components": 3,
            "solver": "BFGS",
            "lineSearch": {"contraction": 0.55, "sufficientDecrease": 0.4, "maxTrials": 20},
            "residual": {"momentum": 0.9, "learningRate": 0.001},
        }
    },
}
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


class Normed(nn.Cell):  # type: ignore[misc]
    """The small network after a batch normalization, whose running statistics are averaged too."""

    def __init__(self) -> None:
        super().__init__()
        self.normalize = nn.BatchNorm2d(thornetworks.CHANNELS)
        self.chain = thornetworks.Chain()

    def construct(self, x: Tensor) -> Tensor:
        return self.chain(self.normalize(x))


class Trainee:
    def __init__(self, algorithm: str = "Momentum", averaged: bool = True) -> None:
        model = trainerconfig.MODEL | {"numClasses": thornetworks.CLASSES}
        settings = trainerconfig.GOOD | {"model": model, "algorithm": algorithm} | ALGORITHMS[algorithm]
        settings |= {"ema": {"decay": DECAY}} if averaged else {}
        self.network = Normed()
        numbers = sum(parameter.size for parameter in self.network.trainable_params())
        basis = Basis(pcareference.orthonormal(3, numbers).astype(np.float32), numbers, 1.0)
        loaded = msgspec.convert(settings, config.Config, strict=False)
        self.program = Program(loaded, self.network, Communicator(0, 1), basis if algorithm == "PCA" else None)

    def step(self, step: int) -> Arrays:
        """The network's state after a step."""
        images, labels = thornetworks.images(8, seed=step), thornetworks.labels(8)
        self.program.step(Tensor(images), Tensor(labels), StepSchedule(step, 0.1, 0.1), stop=False)
        return self.contents()

    def contents(self) -> Arrays:
        return {name: value.asnumpy().copy() for name, value in self.network.parameters_and_names()}

    def saved(self) -> dict[str, Arrays]:
        contents = self.program.state.snapshot()
        assert contents is not None
        return contents


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_average_is_of_all_weights_and_statistics(algorithm: str) -> None:
    trainee = Trainee(algorithm)
    expected: Arrays = {}
    for step in range(4):
        after = trainee.step(step)
        kept = min(DECAY, step / (step + 10))
        expected = {name: kept * expected.get(name, 0) + (1 - kept) * value for name, value in after.items()}
        average = trainee.saved()[AVERAGE]
        assert average.keys() == expected.keys() == trainee.saved()[MODEL].keys()
        for name, value in expected.items():
            np.testing.assert_allclose(average[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_it_does_not_change_training() -> None:
    trainee, plain = Trainee(), Trainee(averaged=False)
    for step in range(3):
        same(trainee.step(step), plain.step(step))
    assert AVERAGE not in plain.saved()


def same(ours: Arrays, theirs: Arrays) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_a_long_average_forgets_only_its_decay() -> None:
    assert [ema.share(0.9999, step) for step in (0, 10, 999990)] == [0, 0.5, 0.9999]


def test_a_resumed_average_is_the_same_to_the_bit() -> None:
    undisturbed = Trainee()
    undisturbed.step(0)
    undisturbed.step(1)
    saved = undisturbed.saved()
    undisturbed.step(2)
    resumed = Trainee()
    resumed.program.state.restore(saved)
    resumed.step(2)
    for name, arrays in undisturbed.saved().items():
        same(resumed.saved()[name], arrays)


def test_a_new_stage_begins_its_average_with_the_weights_it_starts_from() -> None:
    before, trainee = Trainee(), Trainee()
    before.step(0)
    trainee.program.state.warm_start(before.saved()[MODEL])
    same(trainee.saved()[AVERAGE], before.saved()[MODEL])


def test_the_network_has_the_average_for_an_evaluation_and_then_its_own_again() -> None:
    trainee = Trainee()
    for step in range(3):
        trainee.step(step)
    before, average = trainee.contents(), trainee.program.average
    assert average is not None
    with pytest.raises(InterruptedError), average.applied():
        same(trainee.contents(), trainee.saved()[AVERAGE])
        raise InterruptedError
    same(trainee.contents(), before)
    assert any((trainee.saved()[AVERAGE][name] != value).any() for name, value in before.items())
