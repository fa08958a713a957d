"""The state a checkpoint saves and a resumed gang starts from: weights, BN statistics, optimizer; it touches no disk.

Weights and optimizer state are the same bits on every rank. BN's running statistics are each rank's own: they go into
a shard per rank, so that a resumed run is bit-identical, and their mean goes beside the weights, for everybody else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn

from resnetboost_trainer.distributed import Communicator, Floats
from resnetboost_trainer.verdict import ConfigError

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"

Arrays = dict[str, npt.NDArray[np.float32]]


def shard(rank: int) -> str:
    """File name of what only that rank has."""
    return f"rank-{rank:04d}.safetensors"


class State:
    """All parameters of a training program under the names a checkpoint gives them."""

    def __init__(self, network: nn.Cell, optimizer: Sequence[Parameter], communicator: Communicator) -> None:
        named = dict(network.parameters_and_names())
        self.weights = {name: value for name, value in named.items() if not _is_statistic(name)}
        self.statistics = {name: value for name, value in named.items() if _is_statistic(name)}
        self.optimizer = {parameter.name: parameter for parameter in optimizer}
        self.communicator = communicator

    def snapshot(self) -> dict[str, Arrays] | None:
        """Contents of a checkpoint as copies on rank 0, None elsewhere. A collective: all ranks call it together."""
        every = self.communicator.gather(_flatten(self.statistics))
        if self.communicator.rank != 0:
            return None
        mean = every[0] if len(every) == 1 else every.sum(axis=0) / np.float32(len(every))
        contents = {
            MODEL: _copy(self.weights) | _unflatten(mean, self.statistics),
            OPTIMIZER: _copy(self.optimizer),
        }
        return contents | {shard(rank): _unflatten(row, self.statistics) for rank, row in enumerate(every)}

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Continue from a checkpoint of this very stage; `contents` on rank 0. A collective.

        Raises ConfigError on rank 0 when the checkpoint is of another model.
        """
        everything = {**self.weights, **self.optimizer}
        statistics = np.zeros((self.communicator.size, _count(self.statistics)), np.float32)
        if contents is not None:
            _set(self.weights, contents[MODEL])
            _set(self.optimizer, contents[OPTIMIZER])
            for rank, row in enumerate(statistics):
                # A gang of another size starts from the mean, which is what evaluation uses.
                row[:] = _pick(contents.get(shard(rank), contents[MODEL]), self.statistics)
        _unflatten_into(self.communicator.broadcast(_flatten(everything)), everything)
        _unflatten_into(self.communicator.broadcast(statistics)[self.communicator.rank], self.statistics)

    def warm_start(self, model: Arrays | None) -> None:
        """Begin with the weights and statistics another stage ended with; the optimizer starts afresh. A collective."""
        everything = {**self.weights, **self.statistics}
        if model is not None:
            _set(everything, model)
        _unflatten_into(self.communicator.broadcast(_flatten(everything)), everything)

    def evaluation_statistics(self) -> Floats:
        """Make every rank evaluate with the mean of all ranks' statistics; returns this rank's own. A collective."""
        own = _flatten(self.statistics)
        _unflatten_into(self.communicator.mean(own), self.statistics)
        return own

    def training_statistics(self, own: Floats) -> None:
        """Take up a rank's own statistics again, bit for bit."""
        _unflatten_into(own, self.statistics)


def _is_statistic(name: str) -> bool:
    return name.endswith(("moving_mean", "moving_variance"))


def _count(parameters: Mapping[str, Parameter]) -> int:
    return sum(parameter.size for parameter in parameters.values())


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
        parameters[name].set_data(Tensor(array))


def _pick(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Floats:
    _check(arrays, parameters)
    return np.concatenate([arrays[name].reshape(-1) for name in parameters])


def _set(parameters: Mapping[str, Parameter], arrays: Mapping[str, Any]) -> None:
    _check(arrays, parameters)
    for name, parameter in parameters.items():
        parameter.set_data(Tensor(arrays[name]))


def _check(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        if name not in arrays:
            raise ConfigError(f"the checkpoint is of another model: it has no parameter {name}")
        if arrays[name].shape != tuple(parameter.shape):
            ours, theirs = tuple(parameter.shape), arrays[name].shape
            raise ConfigError(f"the checkpoint is of another model: {name} has shape {theirs}, this job's has {ours}")
