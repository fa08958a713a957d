"""Exponential moving average of the weights (Polyak & Juditsky 1992; Tan & Le 2019), kept beside the trained ones."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from resnetboost_trainer.checkpoint import arrays
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.checkpoint.state import by_rank, shard
from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.models.assign import write
from resnetboost_trainer.models.layers.running_stats import VirtualStatistics

# Files of a checkpoint: the average, and of each virtual rank that of its own BN statistics.
AVERAGE, SHARD_PREFIX = "ema.safetensors", "ema-"
# The first averages forget faster, so that the initial weights do not dominate them: after n steps a share of at most
# n / (n + 10) is old.
WARMUP_STEPS = 10


def share(decay: float, step: int) -> float:
    """Share of the old average that is kept after a step, 0-based: 0 after the first."""
    return min(decay, step / (step + WARMUP_STEPS))


class ModelEma:
    """average <- share average + (1 - share) trained, of weights and, of each virtual rank, of its BN statistics."""

    def __init__(
        self,
        weights: Mapping[str, Parameter],
        statistics: Mapping[str, Parameter],
        decay: float,
        communicator: Communicator,
        virtual: VirtualStatistics | None = None,
    ) -> None:
        """Parameters by their names in a checkpoint; weights are the same on every rank, statistics are not.

        `virtual`: the statistics of the virtual ranks of this rank, if it has several.
        """
        self.weights, self.statistics = dict(weights), dict(statistics)
        self.decay, self.communicator = decay, communicator
        self._everything = {**self.weights, **self.statistics}
        self._virtual, self._each = virtual, 1 if virtual is None else len(virtual.rows)
        self._own = arrays.count(self.weights)  # where the statistics begin, one virtual rank's after another's
        live = self._everything if virtual is None else self.weights
        self._average = _Average(list(live.values()), self._own + self._each * arrays.count(self.statistics))

    def update(self, step: int) -> None:
        """Update the average after a step, 0-based."""
        rows = () if self._virtual is None else self._virtual.rows
        self._average(Tensor(share(self.decay, step), mindspore.float32), *rows)

    def begin(self) -> None:
        """Start the average from the weights that training starts from."""
        own = arrays.flatten(self.statistics)[None] if self._virtual is None else self._virtual.values
        self._set(np.concatenate([arrays.flatten(self.weights), own.reshape(-1)]))

    def snapshot(self) -> dict[str, Arrays]:
        """Its files of a checkpoint at the leader, none elsewhere. A collective."""
        flat = self._flat()
        rows = np.zeros((0, 0), np.float32)
        if self.statistics:
            ranks = self._each * self.communicator.size
            rows = self.communicator.gather(flat[self._own :]).reshape(ranks, -1)
        if not self.communicator.leads:
            return {}
        contents = {shard(rank, SHARD_PREFIX): arrays.unflatten(row, self.statistics) for rank, row in enumerate(rows)}
        whole = np.concatenate([flat[: self._own], arrays.mean(rows)])
        return {AVERAGE: arrays.unflatten(whole, self._everything)} | contents

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Continue from a checkpoint; `contents` at the leader. A collective.

        A training of another number of virtual ranks starts from the mean of the statistics.
        """
        weights = np.zeros(self._own, np.float32)
        rows = np.zeros((self._each * self.communicator.size, arrays.count(self.statistics)), np.float32)
        if contents is not None:
            weights[:] = arrays.pick(contents[AVERAGE], self.weights)
            rows = by_rank(contents, AVERAGE, self.statistics, len(rows), SHARD_PREFIX)
        weights = self.communicator.broadcast(weights)
        if self.statistics:
            rows = self.communicator.broadcast(rows)
        first = self._each * self.communicator.rank
        self._set(np.concatenate([weights, rows[first : first + self._each].reshape(-1)]))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the network the average within the context, with the mean of all ranks' statistics. A collective."""
        flat = self._flat()
        weights, own = flat[: self._own], flat[self._own :]
        if self.statistics:
            own = self.communicator.mean(arrays.mean(own.reshape(self._each, -1)))
        trained = arrays.copy(self._everything)
        try:
            arrays.assign_flat(np.concatenate([weights, own]), self._everything)
            yield
        finally:
            arrays.assign(trained, self._everything)

    def _flat(self) -> Floats:
        flat: Floats = self._average.flat.asnumpy().copy()
        return flat

    def _set(self, flat: Floats) -> None:
        write(self._average.flat, flat)


class _Average(nn.Cell):
    """(share, vectors ...) -> share; updates one flat parameter of `count` values: the parameters', then the vectors'.

    A hundred small ones cost more than the arithmetic.
    """

    def __init__(self, parameters: Sequence[Parameter], count: int) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.flat = Parameter(Tensor(np.zeros(count, np.float32)), name="ema", requires_grad=False)

    def construct(self, kept: Tensor, *more: Tensor) -> Tensor:
        pieces = []
        for parameter in self.parameters:
            pieces.append(parameter.reshape(-1))
        for vector in more:
            pieces.append(vector)
        ops.assign(self.flat, self.flat * kept + ops.concat(pieces) * (1 - kept))
        return kept
