"""The training state that a checkpoint saves and restores: weights, BN statistics, optimizer.

Weights are the same bits on every rank, and so is the optimizer's state, unless each node has its own. BN's running
statistics differ between ranks. Values that differ are saved in a shard per virtual rank or node, so that a resumed run
is bit-identical; their mean is saved with the rest, for trainings of another number and for evaluation. A gang with
fewer ranks than virtual ones has the same shards: each of its ranks keeps those of several.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from mindspore import Parameter, nn

from resnetboost_trainer.checkpoint import arrays
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.models import freeze
from resnetboost_trainer.models.layers.running_stats import VirtualStatistics

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


def shard(rank: int, prefix: str = "") -> str:
    """Return the file name of a virtual rank's own values."""
    return f"{prefix}rank-{rank:04d}.safetensors"


def node_shard(node: int) -> str:
    """Return the file name of a node's own values."""
    return f"node-{node:04d}.safetensors"


def by_rank(
    contents: Mapping[str, Arrays], mean: str, parameters: Mapping[str, Parameter], ranks: int, prefix: str = ""
) -> Floats:
    """Return the values of each of so many virtual ranks in a checkpoint, (ranks, values).

    If the checkpoint is of another number, all begin with the mean, which is in the file of that name.
    Raises ConfigError if the checkpoint belongs to another model.
    """
    shards = [shard(rank, prefix) for rank in range(ranks)]
    as_saved = contents.keys() >= set(shards) and shard(ranks, prefix) not in contents
    files = shards if as_saved else [mean] * ranks
    return np.stack([arrays.pick(contents[name], parameters) for name in files])


class Average(Protocol):
    """An average of the weights as part of the state. All methods except `begin` are collectives."""

    def begin(self) -> None:
        """Initialize the average with the initial weights."""
        ...

    def snapshot(self) -> dict[str, Arrays]:
        """Return the average's files of a checkpoint on the leader, none on other ranks."""
        ...

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Restore the average from a checkpoint; only the leader has `contents`."""
        ...


class Watch(Protocol):
    """What watches the losses, as part of the state."""

    def snapshot(self) -> dict[str, Arrays]:
        """Return the watch's files of a checkpoint on the leader, none on other ranks."""
        ...

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Restore the watch from a checkpoint; only the leader has `contents`. A collective."""
        ...


class State:
    """All parameters of a training program by their names in a checkpoint."""

    def __init__(
        self,
        network: nn.Cell,
        optimizer: Sequence[Parameter],
        communicator: Communicator,
        of_node: Sequence[Parameter] = (),
        ranks_per_node: int = 1,
    ) -> None:
        """`of_node` is the part of the optimizer's state that differs between nodes (of neighbouring ranks)."""
        named = dict(network.parameters_and_names())
        moving = freeze.moving(network)  # statistics of frozen layers are the same on every rank, like weights
        self.weights = {name: value for name, value in named.items() if name not in moving}
        self.statistics = {name: value for name, value in named.items() if name in moving}
        self.optimizer = {parameter.name: parameter for parameter in optimizer}
        self.of_node = {parameter.name: parameter for parameter in of_node}
        self.later: dict[str, Parameter] = {}
        self.communicator, self.ranks_per_node = communicator, ranks_per_node
        self.virtual: VirtualStatistics | None = None
        self.average: Average | None = None
        self.watch: Watch | None = None

    def add(self, parameters: Sequence[Parameter]) -> None:
        """Add optional parameters: a checkpoint without them (older trainer, other loss scale) keeps their values."""
        self.later |= {parameter.name: parameter for parameter in parameters}

    def become_virtual(self, each: int) -> VirtualStatistics | None:
        """Keep the statistics of so many virtual ranks on this rank from now on; None if the network has none."""
        if self.statistics:
            self.virtual = VirtualStatistics(list(self.statistics.values()), each)
        return self.virtual

    @property
    def own(self) -> Floats:
        """Copies of the statistics of this rank's virtual ranks, (virtual ranks, values)."""
        return arrays.flatten(self.statistics)[None] if self.virtual is None else self.virtual.values

    def _set_own(self, rows: Floats) -> None:
        if self.virtual is None:
            arrays.assign_flat(rows[0], self.statistics)
        else:
            self.virtual.values = rows

    def snapshot(self) -> dict[str, Arrays] | None:
        """Return copies of a checkpoint's contents on the leader, None on other ranks. A collective: all ranks call."""
        own = self.own
        every = self.communicator.gather(own.reshape(-1)).reshape(len(own) * self.communicator.size, own.shape[1])
        nodes = list(self._of_nodes())
        averaged = self.average.snapshot() if self.average is not None else {}
        if not self.communicator.leads:
            return None
        contents = {
            MODEL: arrays.copy(self.weights) | arrays.unflatten(arrays.mean(every), self.statistics),
            OPTIMIZER: arrays.copy(self.optimizer)
            | arrays.copy(self.later)
            | arrays.unflatten(arrays.mean(nodes), self.of_node),
        }
        contents |= {node_shard(node): arrays.unflatten(row, self.of_node) for node, row in enumerate(nodes)}
        contents |= {shard(rank): arrays.unflatten(row, self.statistics) for rank, row in enumerate(every)}
        return contents | averaged | (self.watch.snapshot() if self.watch is not None else {})

    def _of_nodes(self) -> Iterator[Floats]:
        """Yield each node's values on the leader, one node at a time: each may be as large as the model."""
        if not self.of_node:
            return
        rank, own = self.communicator.rank, arrays.flatten(self.of_node)
        for first in range(0, self.communicator.size, self.ranks_per_node):
            # The sum of one number and zeros is that number; a CPU has neither Send nor Gather.
            sent = self.communicator.sum(own if rank == first else np.zeros_like(own))
            if self.communicator.leads:
                yield sent.copy()

    def restore(self, contents: Mapping[str, Arrays] | None) -> None:
        """Restore a checkpoint of this stage; only the leader has `contents`. A collective.

        Raises ConfigError on the leader if the checkpoint belongs to another model.
        """
        everything = {**self.weights, **self.optimizer, **self.later}
        self._restore_nodes(contents)
        each = 1 if self.virtual is None else len(self.virtual.rows)
        statistics = np.zeros((each * self.communicator.size, arrays.count(self.statistics)), np.float32)
        if contents is not None:
            arrays.assign(contents[MODEL], self.weights)
            saved = contents[OPTIMIZER]
            arrays.assign(saved, self.optimizer)
            arrays.assign(saved, {name: value for name, value in self.later.items() if name in saved})
            statistics = by_rank(contents, MODEL, self.statistics, len(statistics))
        arrays.assign_flat(self.communicator.broadcast(arrays.flatten(everything)), everything)
        first = each * self.communicator.rank
        self._set_own(self.communicator.broadcast(statistics)[first : first + each])
        if self.average is not None:
            self.average.restore(contents)
        if self.watch is not None:
            self.watch.restore(contents)

    def _restore_nodes(self, contents: Mapping[str, Arrays] | None) -> None:
        """Restore this node's values; a gang with another number of nodes starts from their mean."""
        if not self.of_node:
            return
        nodes = self.communicator.size // self.ranks_per_node
        own = np.zeros(arrays.count(self.of_node), np.float32)
        as_saved = contents is not None and node_shard(nodes - 1) in contents and node_shard(nodes) not in contents
        for node in range(nodes):
            row = np.zeros_like(own)
            if contents is not None:
                row = arrays.pick(contents[node_shard(node) if as_saved else OPTIMIZER], self.of_node)
            row = self.communicator.broadcast(row)
            if node == self.communicator.rank // self.ranks_per_node:
                own = row
        arrays.assign_flat(own, self.of_node)

    def warm_start(self, model: Arrays | None) -> None:
        """Start from another stage's final weights and statistics, with a new optimizer state. A collective."""
        everything = {**self.weights, **self.statistics}
        if model is not None:
            arrays.assign(model, everything)
        arrays.assign_flat(self.communicator.broadcast(arrays.flatten(everything)), everything)
        if self.virtual is not None:
            self.virtual.values = np.repeat(arrays.flatten(self.statistics)[None], len(self.virtual.rows), axis=0)
        if self.average is not None:
            self.average.begin()

    def completed(self, given: Arrays) -> Arrays:
        """Return the given arrays, completed with copies of this rank's weights and statistics."""
        return arrays.copy(self.weights) | arrays.copy(self.statistics) | given

    def evaluated(self) -> Arrays:
        """Return copies of the weights and statistics that the network has at the moment."""
        return arrays.copy(self.weights) | arrays.copy(self.statistics)

    def evaluation_statistics(self) -> Floats:
        """Set the statistics to the mean of all virtual ranks', for evaluation; return what they were. A collective."""
        before = arrays.flatten(self.statistics)
        arrays.assign_flat(self.communicator.mean(arrays.mean(self.own)), self.statistics)
        return before

    def training_statistics(self, before: Floats) -> None:
        """Restore the network's statistics bit for bit, for training."""
        arrays.assign_flat(before, self.statistics)
