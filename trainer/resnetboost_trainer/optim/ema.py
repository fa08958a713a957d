"""A moving average of the weights (Polyak & Juditsky 1992; Tan & Le 2019), kept beside those that are trained."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.models.assign import write

AVERAGE = "ema.safetensors"
# The first averages forget faster, so that they are not mostly what training began with: after n steps a share of at
# most n / (n + 10) is old.
WARMUP_STEPS = 10

Arrays = dict[str, npt.NDArray[np.float32]]


def shard(rank: int) -> str:
    """File name of what only that rank has: the average of its own BN statistics."""
    return f"ema-rank-{rank:04d}.safetensors"


def share(decay: float, step: int) -> float:
    """What of the old average is kept after a step, 0-based; the first average is what that step made."""
    return min(decay, step / (step + WARMUP_STEPS))


class Averaging:
    """average <- share average + (1 - share) what is trained, of weights and, by rank, of BN's running statistics."""

    def __init__(
        self,
        weights: Mapping[str, Parameter],
        statistics: Mapping[str, Parameter],
        decay: float,
        communicator: Communicator,
    ) -> None:
        """By their names in a checkpoint; the weights are the same on every rank, the statistics are not."""
        self.weights, self.statistics = dict(weights), dict(statistics)
        self.decay, self.communicator = decay, communicator
        self._everything = {**self.weights, **self.statistics}
        self._own = sum(parameter.size for parameter in self.weights.values())  # where the statistics begin
        self._average = _Average(list(self._everything.values()))

    def update(self, step: int) -> None:
        """Take in what a step, 0-based, has made."""
        self._average(Tensor(share(self.decay, step), mindspore.float32))

    def begin(self) -> None:
        """Before the first step the average is what training begins with."""
        self._set(np.concatenate([parameter.asnumpy().reshape(-1) for parameter in self._everything.values()]))

    def snapshot(self) -> dict[str, Arrays]:
        """What a checkpoint has of it: at the leader all, elsewhere nothing. A collective."""
        flat = self._flat()
        rows = self.communicator.gather(flat[self._own :]) if self.statistics else np.zeros((0, 0), np.float32)
        if not self.communicator.leads:
            return {}
        contents = {shard(rank): _named(row.copy(), self.statistics) for rank, row in enumerate(rows)}
        return {AVERAGE: self._named(np.concatenate([flat[: self._own], self._mean(rows)]))} | contents

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Go on from a checkpoint; `contents` at the leader. A collective.

        A gang of another size starts from the mean of the statistics.
        """
        weights = np.zeros(self._own, np.float32)
        rows = np.zeros((self.communicator.size, self._count - self._own), np.float32)
        if contents is not None:
            weights[:] = _row(contents[AVERAGE], self.weights)
            for rank, row in enumerate(rows):
                row[:] = _row(contents.get(shard(rank), contents[AVERAGE]), self.statistics)
        weights = self.communicator.broadcast(weights)
        own = self.communicator.broadcast(rows)[self.communicator.rank] if self.statistics else rows[0]
        self._set(np.concatenate([weights, own]))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The network has the average, with the mean of all ranks' statistics, and then its own again. A collective."""
        flat = self._flat()
        if self.statistics:
            flat[self._own :] = self.communicator.mean(flat[self._own :])
        trained = {name: parameter.asnumpy().copy() for name, parameter in self._everything.items()}
        try:
            _assign(self._everything, self._named(flat))
            yield
        finally:
            _assign(self._everything, trained)

    @property
    def _count(self) -> int:
        return sum(parameter.size for parameter in self._everything.values())

    def _mean(self, rows: Floats) -> Floats:
        """Of the ranks' statistics, bit for bit the row where there is one."""
        if len(rows) == 0:
            return np.zeros(0, np.float32)
        mean: Floats = rows[0] if len(rows) == 1 else np.sum(rows, axis=0) / np.float32(len(rows))
        return mean

    def _flat(self) -> Floats:
        flat: Floats = self._average.flat.asnumpy().copy()
        return flat

    def _set(self, flat: Floats) -> None:
        write(self._average.flat, flat)

    def _named(self, flat: Floats) -> Arrays:
        return _named(flat, self._everything)


class _Average(nn.Cell):
    """One parameter for all of them, since a hundred small ones cost more than the arithmetic: share -> share."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        count = sum(math.prod(parameter.shape) for parameter in parameters)
        self.flat = Parameter(Tensor(np.zeros(count, np.float32)), name="ema", requires_grad=False)

    def construct(self, kept: Tensor) -> Tensor:
        pieces = []
        for parameter in self.parameters:
            pieces.append(parameter.reshape(-1))
        ops.assign(self.flat, self.flat * kept + ops.concat(pieces) * (1 - kept))
        return kept


def _named(flat: Floats, parameters: Mapping[str, Parameter]) -> Arrays:
    arrays, start = {}, 0
    for name, parameter in parameters.items():
        arrays[name] = flat[start : start + parameter.size].reshape(parameter.shape).copy()
        start += parameter.size
    return arrays


def _row(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Floats:
    pieces = [arrays[name].reshape(-1) for name in parameters]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _assign(parameters: Mapping[str, Parameter], arrays: Arrays) -> None:
    for name, array in arrays.items():
        write(parameters[name], array)
