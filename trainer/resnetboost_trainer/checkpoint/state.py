"""The training state that a checkpoint saves and restores: weights, BN statistics, optimizer.

Weights are the same bits on every rank, and so is the optimizer's state, unless each node has its own. BN's running
statistics differ between ranks. Values that differ are saved in a shard per rank or node, so that a resumed run is
bit-identical; their mean is saved with the rest, for gangs of another size and for evaluation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from mindspore import Parameter, nn

from resnetboost_trainer.checkpoint import arrays
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.models import freeze

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


def shard(rank: int, prefix: str = "") -> str:
    """Return the file name of a rank's own values."""
    return f"{prefix}rank-{rank:04d}.safetensors"


def node_shard(node: int) -> str:
    """Return the file name of a node's own values."""
    return f"node-{node:04d}.safetensors"


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
        self.average: Average | None = None
        self.watch: Watch | None = None

    def add(self, parameters: Sequence[Parameter]) -> None:
        """Add optional parameters: a checkpoint without them (older trainer, other loss scale) keeps their values."""
        self.later |= {parameter.name: parameter for parameter in parameters}

    def snapshot(self) -> dict[str, Arrays] | None:
        """Return copies of a checkpoint's contents on the leader, None on other ranks. A collective: all ranks call."""
        every = self.communicator.gather(arrays.flatten(self.statistics))
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
        statistics = np.zeros((self.communicator.size, arrays.count(self.statistics)), np.float32)
        if contents is not None:
            arrays.assign(contents[MODEL], self.weights)
            saved = contents[OPTIMIZER]
            arrays.assign(saved, self.optimizer)
            arrays.assign(saved, {name: value for name, value in self.later.items() if name in saved})
            for rank, row in enumerate(statistics):
                # A gang of another size starts from the mean, which is what evaluation uses.
                row[:] = arrays.pick(contents.get(shard(rank), contents[MODEL]), self.statistics)
        arrays.assign_flat(self.communicator.broadcast(arrays.flatten(everything)), everything)
        arrays.assign_flat(self.communicator.broadcast(statistics)[self.communicator.rank], self.statistics)
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
        if self.average is not None:
            self.average.begin()

    def completed(self, given: Arrays) -> Arrays:
        """Return the given arrays, completed with copies of this rank's weights and statistics."""
        return arrays.copy(self.weights) | arrays.copy(self.statistics) | given

    def evaluation_statistics(self) -> Floats:
        """Set the statistics to their mean over the ranks, for evaluation; return this rank's own. A collective."""
        own = arrays.flatten(self.statistics)
        arrays.assign_flat(self.communicator.mean(own), self.statistics)
        return own

    def training_statistics(self, own: Floats) -> None:
        """Restore this rank's own statistics bit for bit, for training."""
        arrays.assign_flat(own, self.statistics)
