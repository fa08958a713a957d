"""Exponential moving average of the weights (Polyak & Juditsky 1992; Tan & Le 2019), kept beside the trained ones."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.checkpoint import arrays
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.checkpoint.state import shard
from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.models.assign import write

# Files of a checkpoint: the average, and of each rank that of its own BN statistics.
AVERAGE, SHARD_PREFIX = "ema.safetensors", "ema-"
# The first averages forget faster, so that the initial weights do not dominate them: after n steps a share of at most
# n / (n + 10) is old.
WARMUP_STEPS = 10


def share(decay: float, step: int) -> float:
    """Share of the old average that is kept after a step, 0-based: 0 after the first."""
    return min(decay, step / (step + WARMUP_STEPS))


class ModelEma:
    """average <- share average + (1 - share) trained, of weights and, on each rank, of its BN statistics."""

    def __init__(
        self,
        weights: Mapping[str, Parameter],
        statistics: Mapping[str, Parameter],
        decay: float,
        communicator: Communicator,
    ) -> None:
        """Parameters by their names in a checkpoint; weights are the same on every rank, statistics are not."""
        self.weights, self.statistics = dict(weights), dict(statistics)
        self.decay, self.communicator = decay, communicator
        self._everything = {**self.weights, **self.statistics}
        self._own = arrays.count(self.weights)  # where the statistics begin
        self._average = _Average(list(self._everything.values()))

    def update(self, step: int) -> None:
        """Update the average after a step, 0-based."""
        self._average(Tensor(share(self.decay, step), mindspore.float32))

    def begin(self) -> None:
        """Start the average from the weights that training starts from."""
        self._set(arrays.flatten(self._everything))

    def snapshot(self) -> dict[str, Arrays]:
        """Its files of a checkpoint at the leader, none elsewhere. A collective."""
        flat = self._flat()
        rows = self.communicator.gather(flat[self._own :]) if self.statistics else np.zeros((0, 0), np.float32)
        if not self.communicator.leads:
            return {}
        contents = {shard(rank, SHARD_PREFIX): arrays.unflatten(row, self.statistics) for rank, row in enumerate(rows)}
        whole = np.concatenate([flat[: self._own], arrays.mean(rows)])
        return {AVERAGE: arrays.unflatten(whole, self._everything)} | contents

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Continue from a checkpoint; `contents` at the leader. A collective.

        A gang of another size starts from the mean of the statistics.
        """
        weights = np.zeros(self._own, np.float32)
        rows = np.zeros((self.communicator.size, arrays.count(self.statistics)), np.float32)
        if contents is not None:
            weights[:] = arrays.pick(contents[AVERAGE], self.weights)
            for rank, row in enumerate(rows):
                row[:] = arrays.pick(contents.get(shard(rank, SHARD_PREFIX), contents[AVERAGE]), self.statistics)
        weights = self.communicator.broadcast(weights)
        own = self.communicator.broadcast(rows)[self.communicator.rank] if self.statistics else rows[0]
        self._set(np.concatenate([weights, own]))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the network the average within the context, with the mean of all ranks' statistics. A collective."""
        flat = self._flat()
        if self.statistics:
            flat[self._own :] = self.communicator.mean(flat[self._own :])
        trained = arrays.copy(self._everything)
        try:
            arrays.assign_flat(flat, self._everything)
            yield
        finally:
            arrays.assign(trained, self._everything)

    def _flat(self) -> Floats:
        flat: Floats = self._average.flat.asnumpy().copy()
        return flat

    def _set(self, flat: Floats) -> None:
        write(self._average.flat, flat)


class _Average(nn.Cell):
    """share -> share; updates one flat parameter, since a hundred small ones cost more than the arithmetic."""

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
