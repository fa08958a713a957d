"""Adasum training step in one process: a single rank equals Momentum, and each node's state is saved and restored."""

from typing import Any

import mindspore
import msgspec
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.checkpoint.state import MODEL, OPTIMIZER, State, node_shard, shard
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.optim.adasum import Apply, Change
from resnetboost_trainer.optim.schedule import StepSchedule
from support import thornetworks, trainerconfig

ALONE = Communicator(0, 1)


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


def trained(**changes: Any) -> tuple[dict[str, NDArray[Any]], list[float]]:
    """Weights and losses of four steps of a small network on one rank."""
    model = trainerconfig.MODEL | {"numClasses": thornetworks.CLASSES}
    settings = trainerconfig.GOOD | {"model": model} | changes
    network = thornetworks.Chain()
    program = Program(msgspec.convert(settings, config.Config, strict=False), network, ALONE)
    losses = []
    for step in range(4):
        images, labels = Tensor(thornetworks.images(8, seed=step)), Tensor(thornetworks.labels(8))
        outcome = program.step(images, labels, StepSchedule(step, 0.1, 0.1), stop=False)
        losses.append(outcome.loss)
    return {parameter.name: parameter.asnumpy() for parameter in network.trainable_params()}, losses


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "Nesterov's"])
@pytest.mark.parametrize("reduce", ["Gradient", "Delta"])
def test_a_single_rank_equals_momentum(reduce: str, nesterov: bool) -> None:
    momentum = {"momentum": 0.9, "weightDecay": 0.01, "nesterov": nesterov}
    expected, losses = trained(momentum=momentum)
    adasum = {"reduce": reduce, "ranksPerNode": 1}
    weights, ours = trained(momentum=momentum, algorithm="Adasum", adasum=adasum)
    assert losses[-1] != pytest.approx(losses[0], rel=0.01), "it did not learn"
    assert ours == pytest.approx(losses, rel=1e-6)
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_change_is_returned_before_it_is_applied() -> None:
    weight = Parameter(Tensor(np.full((2, 2), 1.0, np.float32)), name="weight")
    change = Change([weight], config.Momentum(momentum=0.5, weight_decay=0.25, nesterov=False))
    gradient, rate = Tensor(np.array([1, 2, 3, 4], np.float32)), Tensor(0.5, mindspore.float32)
    first = change(gradient, rate).asnumpy()
    np.testing.assert_array_equal(first, 0.5 * (np.array([1, 2, 3, 4]) + 0.25))
    np.testing.assert_array_equal(weight.asnumpy(), np.ones((2, 2)))
    second = change(gradient, rate).asnumpy()
    np.testing.assert_array_equal(second, 1.5 * first)
    Apply(change)(Tensor(second))
    np.testing.assert_array_equal(weight.asnumpy().reshape(-1), 1 - second)


class TestStateOfNodes:
    """Each node's momentum in a checkpoint."""

    def state(self) -> State:
        self.own = Parameter(Tensor(np.full(3, 7, np.float32)), name="velocity")
        return State(nn.BatchNorm1d(2), [], ALONE, [self.own])

    def saved(self, *nodes: float) -> dict[str, Arrays]:
        """A checkpoint of that many nodes, each with its number."""
        contents = self.state().snapshot()
        assert contents is not None
        assert node_shard(0) in contents
        filled = {node: {"velocity": np.full(3, value, np.float32)} for node, value in enumerate(nodes)}
        mean = {"velocity": np.full(3, np.mean(nodes), np.float32)}
        kept = {name: contents[name] for name in (MODEL, shard(0))}
        return kept | {OPTIMIZER: mean} | {node_shard(node): arrays for node, arrays in filled.items()}

    def restored(self, contents: dict[str, Arrays]) -> list[float]:
        self.state().restore(contents)
        values: list[float] = self.own.asnumpy().tolist()
        return values

    def test_it_is_saved_and_so_is_the_mean(self) -> None:
        contents = self.state().snapshot()
        assert contents is not None
        assert contents[node_shard(0)]["velocity"].tolist() == [7, 7, 7]
        assert contents[OPTIMIZER]["velocity"].tolist() == [7, 7, 7]

    def test_as_many_nodes_go_on_with_their_own(self) -> None:
        contents = self.saved(2.0)
        contents[OPTIMIZER] = {"velocity": np.full(3, 5, np.float32)}
        assert self.restored(contents) == [2, 2, 2]

    def test_another_number_of_nodes_starts_from_the_mean(self) -> None:
        assert self.restored(self.saved(2.0, 4.0)) == [3, 3, 3]
