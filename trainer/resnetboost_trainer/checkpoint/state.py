"""The state a checkpoint saves and a resumed gang starts from: weights, BN statistics, optimizer; it touches no disk.

Weights are the same bits on every rank, and so is the optimizer's state, unless each node has its own. BN's running
statistics are each rank's own. What is not the same everywhere goes into a shard per rank or node, so that a resumed
run is bit-identical, and its mean goes beside the rest, for everybody else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Parameter, nn

from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import freeze
from resnetboost_trainer.models.assign import write
from resnetboost_trainer.optim.ema import Averaging

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"

Arrays = dict[str, npt.NDArray[np.float32]]


def shard(rank: int) -> str:
    """File name of what only that rank has."""
    return f"rank-{rank:04d}.safetensors"


def node_shard(node: int) -> str:
    """File name of what only the ranks of that node have."""
    return f"node-{node:04d}.safetensors"


class State:
    """All parameters of a training program under the names a checkpoint gives them."""

    def __init__(
        self,
        network: nn.Cell,
        optimizer: Sequence[Parameter],
        communicator: Communicator,
        of_node: Sequence[Parameter] = (),
        ranks_per_node: int = 1,
    ) -> None:
        """`of_node` is the part of the optimizer's state that each node of neighbouring ranks has for itself."""
        named = dict(network.parameters_and_names())
        moving = freeze.moving(network)  # those of frozen layers are as much the same everywhere as weights
        self.weights = {name: value for name, value in named.items() if name not in moving}
        self.statistics = {name: value for name, value in named.items() if name in moving}
        self.optimizer = {parameter.name: parameter for parameter in optimizer}
        self.of_node = {parameter.name: parameter for parameter in of_node}
        self.later: dict[str, Parameter] = {}
        self.communicator, self.ranks_per_node = communicator, ranks_per_node
        self.average: Averaging | None = None

    def add(self, parameters: Sequence[Parameter]) -> None:
        """Save these too. A checkpoint without them, which an older trainer or another scale left, lets them be."""
        self.later |= {parameter.name: parameter for parameter in parameters}

    def keep_average(self, decay: float) -> Averaging:
        """From now on an average of weights and statistics is a part of the state."""
        self.average = Averaging(self.weights, self.statistics, decay, self.communicator)
        return self.average

    def snapshot(self) -> dict[str, Arrays] | None:
        """Contents of a checkpoint as copies at the leader, None elsewhere. A collective: all ranks call it."""
        every = self.communicator.gather(_flatten(self.statistics))
        nodes = list(self._of_nodes())
        averaged = self.average.snapshot() if self.average is not None else {}
        if not self.communicator.leads:
            return None
        contents = {
            MODEL: _copy(self.weights) | _unflatten(_mean(every), self.statistics),
            OPTIMIZER: _copy(self.optimizer) | _copy(self.later) | _unflatten(_mean(nodes), self.of_node),
        }
        contents |= {node_shard(node): _unflatten(row, self.of_node) for node, row in enumerate(nodes)}
        contents |= {shard(rank): _unflatten(row, self.statistics) for rank, row in enumerate(every)}
        return contents | averaged

    def _of_nodes(self) -> Iterator[Floats]:
        """What each node has, at the leader, empty elsewhere: a node at a time, as it may be as large as the model."""
        if not self.of_node:
            return
        rank, own = self.communicator.rank, _flatten(self.of_node)
        for first in range(0, self.communicator.size, self.ranks_per_node):
            # The sum of one number and zeros is that number; a CPU has neither Send nor Gather.
            sent = self.communicator.sum(own if rank == first else np.zeros_like(own))
            if self.communicator.leads:
                yield sent.copy()

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Continue from a checkpoint of this very stage; `contents` at the leader. A collective.

        Raises ConfigError there when the checkpoint is of another model.
        """
        everything = {**self.weights, **self.optimizer, **self.later}
        self._restore_nodes(contents)
        statistics = np.zeros((self.communicator.size, _count(self.statistics)), np.float32)
        if contents is not None:
            _set(self.weights, contents[MODEL])
            saved = contents[OPTIMIZER]
            _set(self.optimizer, saved)
            _set({name: value for name, value in self.later.items() if name in saved}, saved)
            for rank, row in enumerate(statistics):
                # A gang of another size starts from the mean, which is what evaluation uses.
                row[:] = _pick(contents.get(shard(rank), contents[MODEL]), self.statistics)
        _unflatten_into(self.communicator.broadcast(_flatten(everything)), everything)
        _unflatten_into(self.communicator.broadcast(statistics)[self.communicator.rank], self.statistics)
        if self.average is not None:
            self.average.restore(contents)

    def _restore_nodes(self, contents: Mapping[str, Arrays] | None) -> None:
        """A gang of another number of nodes starts from the mean of what the nodes had."""
        if not self.of_node:
            return
        nodes = self.communicator.size // self.ranks_per_node
        own = np.zeros(_count(self.of_node), np.float32)
        as_saved = contents is not None and node_shard(nodes - 1) in contents and node_shard(nodes) not in contents
        for node in range(nodes):
            row = np.zeros_like(own)
            if contents is not None:
                row = _pick(contents[node_shard(node) if as_saved else OPTIMIZER], self.of_node)
            row = self.communicator.broadcast(row)
            if node == self.communicator.rank // self.ranks_per_node:
                own = row
        _unflatten_into(own, self.of_node)

    def warm_start(self, model: Arrays | None) -> None:
        """Begin with the weights and statistics another stage ended with; the optimizer starts afresh. A collective."""
        everything = {**self.weights, **self.statistics}
        if model is not None:
            _set(everything, model)
        _unflatten_into(self.communicator.broadcast(_flatten(everything)), everything)
        if self.average is not None:
            self.average.begin()

    def completed(self, arrays: Arrays) -> Arrays:
        """Those arrays, and of this rank's weights and statistics copies of what they lack."""
        return _copy(self.weights) | _copy(self.statistics) | arrays

    def evaluation_statistics(self) -> Floats:
        """Make every rank evaluate with the mean of all ranks' statistics; returns this rank's own. A collective."""
        own = _flatten(self.statistics)
        _unflatten_into(self.communicator.mean(own), self.statistics)
        return own

    def training_statistics(self, own: Floats) -> None:
        """Take up a rank's own statistics again, bit for bit."""
        _unflatten_into(own, self.statistics)


def _count(parameters: Mapping[str, Parameter]) -> int:
    return sum(parameter.size for parameter in parameters.values())


def _mean(rows: Sequence[Floats] | Floats) -> Floats:
    """Of rows (n, values), bit for bit the row where there is one; empty without any."""
    if len(rows) == 0:
        return np.zeros(0, np.float32)
    return rows[0] if len(rows) == 1 else np.sum(rows, axis=0) / np.float32(len(rows))


def _copy(parameters: Mapping[str, Parameter]) -> Arrays:
    """Copies: training goes on while they are written."""
    return {name: parameter.asnumpy().copy() for name, parameter in parameters.items()}


def _flatten(parameters: Mapping[str, Parameter]) -> Floats:
    pieces = [parameter.asnumpy().reshape(-1) for parameter in parameters.values()]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _unflatten(flat: Floats, parameters: Mapping[str, Parameter]) -> Arrays:
    arrays, start = {}, 0
    for name, parameter in parameters.items():
        arrays[name] = flat[start : start + parameter.size].reshape(parameter.shape).copy()
        start += parameter.size
    return arrays


def _unflatten_into(flat: Floats, parameters: Mapping[str, Parameter]) -> None:
    for name, array in _unflatten(flat, parameters).items():
        write(parameters[name], array)


def _pick(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Floats:
    _check(arrays, parameters)
    pieces = [arrays[name].reshape(-1) for name in parameters]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)  # all of BN may be frozen


def _set(parameters: Mapping[str, Parameter], arrays: Mapping[str, Any]) -> None:
    _check(arrays, parameters)
    for name, parameter in parameters.items():
        write(parameter, arrays[name])


def _check(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        if name not in arrays:
            raise ConfigError(f"the checkpoint is of another model: it has no parameter {name}")
        if arrays[name].shape != tuple(parameter.shape):
            ours, theirs = tuple(parameter.shape), arrays[name].shape
            raise ConfigError(f"the checkpoint is of another model: {name} has shape {theirs}, this job's has {ours}")
