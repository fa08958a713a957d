"""THOR learns the digits in fewer epochs than momentum, with one seed and a coarse threshold."""

import csv
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn

from resnetboost_trainer import config
from resnetboost_trainer.data import registry
from resnetboost_trainer.optim.thor.training import THOR
from support import onerank

pytestmark = [pytest.mark.slow, pytest.mark.long]

EPOCHS = 5
BATCH = 64


def check(accuracies: list[float]) -> None:
    """Accuracy on the test set after each epoch."""
    assert len(accuracies) == EPOCHS
    assert max(accuracies[:2]) >= 0.95
    assert max(accuracies) >= 0.985


def test_a_resnet_in_the_trainer(tmp_path: Path) -> None:
    onerank.train(tmp_path, 0, example="digits-thor", changes=[f"stages[0].epochs={EPOCHS}"], everySteps=1000)
    (metrics,) = tmp_path.glob("checkpoints/*/*/*/metrics.csv")
    with metrics.open() as file:
        check([float(row["top1"]) for row in csv.DictReader(file) if row["top1"]])


class ThreeConvolutions(nn.Cell):  # type: ignore[misc]
    """MindSpore's own layers: (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Cell] = []
        for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.SequentialCell(*layers, nn.Flatten(), nn.Dense(256, 10))

    def construct(self, images: Tensor) -> Tensor:
        return self.layers(images)


@pytest.mark.parametrize(("pi", "damping"), [(False, 0.03), (True, 0.3)], ids=["damping in equal parts", "by traces"])
def test_three_convolutions_of_a_script(pi: bool, damping: float) -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
    mindspore.set_seed(1)
    digits = registry.load(config.Dataset(name="digits"), 10)
    network = ThreeConvolutions()
    thor = THOR(network, learning_rate=0.02, damping=damping, frequency=10, pi=pi)
    cell = thor.training_cell(nn.CrossEntropyLoss())
    generator = np.random.default_rng(1)
    accuracies = []
    for _ in range(EPOCHS):
        order = generator.permutation(len(digits.y_train))
        for some in np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH):
            cell(Tensor(digits.x_train[some]), Tensor(digits.y_train[some]))
        network.set_train(False)
        answers = network(Tensor(digits.x_test)).asnumpy().argmax(1)
        accuracies.append(float((answers == digits.y_test).mean()))
    check(accuracies)
