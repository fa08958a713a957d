"""Compiled graphs see parameters that the trainer wrote after compilation, in both of MindSpore's modes."""

from collections.abc import Callable, Sequence

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.checkpoint.state import State
from resnetboost_trainer.config import DynamicLossScale, LineSearch, Momentum
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.models.assign import write
from resnetboost_trainer.optim.ema import ModelEma
from resnetboost_trainer.optim.grad_scaler import GradScaler
from resnetboost_trainer.optim.pca.solver import Bfgs, Sgd, Solver

Floats = NDArray[np.float32]

pytestmark = pytest.mark.usefixtures("any_mode")

ALONE = Communicator(0, 1)


class Read(nn.Cell):  # type: ignore[misc]
    """() -> the values of all those parameters, as a compiled graph sees them."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.zero = Tensor(0, mindspore.float32)

    @mindspore.jit  # type: ignore[untyped-decorator]
    def construct(self) -> Tensor:
        pieces = []
        for parameter in self.parameters:
            pieces.append(parameter.reshape(-1) + self.zero)
        return ops.concat(pieces)


class Graph:
    """A graph that has run before the parameters are written."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters, self.read = parameters, Read(parameters)
        self.before = self.values()

    def values(self) -> Floats:
        return np.asarray(self.read().asnumpy())

    def follows(self, *, changed: bool = True) -> bool:
        """Whether the graph sees the host's values, and whether they differ from the previous ones."""
        values = self.values()
        host = np.concatenate([parameter.asnumpy().reshape(-1) for parameter in self.parameters])
        return np.array_equal(values, host) and np.array_equal(values, self.before) != changed


class Net(nn.Cell):  # type: ignore[misc]
    """A network with weights and BN statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.normalize = nn.Dense(3, 2), nn.BatchNorm1d(2)


def test_a_graph_follows_repeated_writes() -> None:
    number = Parameter(Tensor(0, mindspore.float32), name="number")
    row = Parameter(Tensor(np.zeros(3, np.float32)), name="row")
    graph = Graph([number, row])
    for value in (1.5, -2.0, 3.0):
        write(number, np.asarray(value))
        write(row, np.full(3, value + 1))  # float64
        assert graph.values().tolist() == [value, value + 1, value + 1, value + 1]
    assert row.dtype == mindspore.float32


def moved(network: nn.Cell, state: State) -> None:
    """Write other values to all parameters through the state's own methods."""
    contents = state.snapshot()
    assert contents is not None
    state.restore({file: {name: value + 1 for name, value in arrays.items()} for file, arrays in contents.items()})


def warmly(network: nn.Cell, state: State) -> None:
    state.warm_start({name: value.asnumpy() + 2 for name, value in network.parameters_and_names()})


@pytest.mark.parametrize("change", [moved, warmly], ids=["resume", "start from another stage"])
def test_a_graph_follows_what_a_state_restores(change: Callable[[nn.Cell, State], None]) -> None:
    network = Net()
    velocity = Parameter(Tensor(np.zeros(2, np.float32)), name="velocity")
    state = State(network, [velocity], ALONE)
    graph = Graph([*network.get_parameters(), velocity])
    change(network, state)
    assert graph.follows()


class Two(Communicator):
    """A gang whose other rank has ones everywhere."""

    def mean(self, values: Floats) -> Floats:
        return (values + np.float32(1)) / np.float32(2)


def test_a_graph_follows_the_statistics_of_an_evaluation_there_and_back() -> None:
    network = Net()
    state = State(network, [], Two(0, 1))
    graph = Graph(list(network.get_parameters()))
    own = state.evaluation_statistics()
    assert graph.follows()
    state.training_statistics(own)
    assert graph.follows(changed=False)


def test_a_graph_follows_the_average_there_and_back() -> None:
    network = Net()
    weights = {parameter.name: parameter for parameter in network.trainable_params()}
    averaging = ModelEma(weights, {}, 0.5, ALONE)
    averaging.begin()
    for parameter in weights.values():
        write(parameter, parameter.asnumpy() + 1)
    averaging.update(10)
    graph = Graph(list(weights.values()))
    with averaging.applied():
        assert graph.follows()
    assert graph.follows(changed=False)
    contents = averaging.snapshot()
    of_average = Graph([averaging._average.flat])
    averaging.restore({file: {name: value * 2 for name, value in some.items()} for file, some in contents.items()})
    assert of_average.follows()


def test_a_graph_follows_the_loss_scale() -> None:
    scaling = GradScaler(DynamicLossScale(initial=1024, growth_steps=2))
    graph = Graph(scaling.parameters)
    told = []
    for finite in (False, True, True, False):
        scaling.leaves_out(finite)
        told.append(float(graph.values()[0]))
    assert told == [512, 512, 1024, 512]


@pytest.mark.parametrize("solver", ["BFGS", "SGD"])
def test_a_graph_follows_what_a_subspace_remembers(solver: str) -> None:
    """No graph reads it today."""
    bfgs: Solver = Bfgs(2, LineSearch(contraction=0.5, sufficient_decrease=0.1, max_trials=3))
    chosen = bfgs if solver == "BFGS" else Sgd(2, Momentum(momentum=0.9, weight_decay=0, nesterov=False))
    graph = Graph(chosen.state())
    taken = chosen.direction(np.array([1.0, 2.0]), 0.1)
    chosen.length(taken, 1.0, lambda length: 0.0)
    assert graph.follows()
