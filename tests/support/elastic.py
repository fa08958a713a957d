"""A small network on some of the digits, with a stage for each algorithm and option that gangs of any size train."""

from collections.abc import Iterator
from typing import Any

import mindspore
import msgspec
import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.loader import BatchRequest, DataLoader
from resnetboost_trainer.data.sampler import DistributedSampler
from resnetboost_trainer.distributed import virtual_ranks
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.layers.norm import BatchNorm
from resnetboost_trainer.optim import schedule
from resnetboost_trainer.optim.pca import subspace
from resnetboost_trainer.optim.pca.subspace import Basis
from support import trainerconfig
from support.elasticcases import LOCAL_BATCH, RANKS, SAMPLES, STAGES

Arrays = dict[str, NDArray[Any]]
CLASSES = 10


class Small(nn.Cell):  # type: ignore[misc]
    """Two convolutions with batch normalization, and a head: (n, 1, 8, 8) -> logits (n, 10)."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.type = mindspore.float16 if half else mindspore.float32
        self.first, self.first_norm = Conv2d(1, 6, 3, padding=1), BatchNorm(6)
        self.second, self.second_norm = Conv2d(6, 8, 3, stride=2, padding=1), BatchNorm(8)
        self.head = nn.Dense(8, CLASSES)
        generator = np.random.default_rng(0)
        for weight in self.trainable_params():
            drawn = 1 + generator.standard_normal(weight.shape) / 4
            weight.set_data(Tensor((drawn - (len(weight.shape) > 1)).astype(np.float32)))

    def construct(self, images: Tensor) -> Tensor:
        features = self.first_norm.rectified(self.first(images.astype(self.type)))
        features = self.second_norm.rectified(self.second(features))
        return self.head(features.astype(mindspore.float32).mean((2, 3)))


class Trainee:
    """One rank's part of the training of a case; `RANKS` ranks define it, whatever the gang's size."""

    def __init__(self, case: str, communicator: Communicator) -> None:
        virtual = {} if communicator.size == RANKS else {"virtualRanks": RANKS}
        common = trainerconfig.GOOD | {"localBatchSize": LOCAL_BATCH, "epochs": 4}
        self.config = msgspec.convert(common | STAGES[case] | virtual, config.Config, strict=False)
        self.dataset = registry.load(self.config.dataset, CLASSES)
        each = virtual_ranks.of(self.config, communicator.size).each
        accumulated = self.config.accumulation_steps
        whole = RANKS * LOCAL_BATCH * accumulated
        rank, ranks = communicator.rank, communicator.size
        self.sampler = DistributedSampler(0, whole, rank, ranks, SAMPLES, each * accumulated)
        network = Small(self.config.precision == "Float16")
        basis = None if self.config.pca is None else _basis(network, self.config.pca.components, communicator)
        self.program = Program(self.config, network, communicator, basis)
        self.program.state.warm_start(None)

    def steps(self, first: int, end: int) -> Iterator[tuple[StepRecord, NDArray[np.int64]]]:
        """Make these steps; yield each one's record and the samples of this rank, (micro batches, local batch)."""
        loader = DataLoader(self.dataset.train, Corrupt(0), 1, self.dataset.mixing)
        requests = list(self.sampler.steps(first, end))
        batches = loader.batches(requests)
        for step in range(first, end):
            now = schedule.at(self.config, step, self.sampler.per_epoch)
            micro = [next(batches) for _ in range(self.sampler.parts)]
            *before, last = [(Tensor(batch.images), Tensor(batch.labels)) for batch in micro]
            for images, labels in before:
                self.program.accumulate(images, labels, now)
            record = self.program.step(*last, now, stop=False)
            start = (step - first) * self.sampler.parts
            yield record, np.stack([_chosen(request) for request in requests[start : start + self.sampler.parts]])
        loader.close()

    def evaluated(self) -> Arrays:
        """The weights and statistics that an evaluation uses, and those of the average. A collective."""
        state, average = self.program.state, self.program.average
        before = state.evaluation_statistics()
        found = {name: value.asnumpy().copy() for name, value in state.statistics.items()}
        state.training_statistics(before)
        if average is not None:
            with average.applied():
                named = {**state.weights, **state.statistics}
                found |= {f"average.{name}": value.asnumpy().copy() for name, value in named.items()}
        return found


def _chosen(request: BatchRequest) -> NDArray[np.int64]:
    return request.whole[request.first : request.first + request.size]


def _basis(network: nn.Cell, components: int, communicator: Communicator) -> Basis:
    """This rank's columns of random orthonormal components."""
    numbers = sum(weight.size for weight in network.trainable_params())
    whole = np.linalg.qr(np.random.default_rng(1).standard_normal((numbers, components)))[0].T
    width = subspace.width(numbers, communicator.size)
    padded = np.zeros((components, width * communicator.size), np.float32)
    padded[:, :numbers] = whole
    columns = np.ascontiguousarray(padded[:, communicator.rank * width :][:, :width])
    return Basis(columns, numbers, 0.5)
