"""Measures the parts of training steps for `profile`; discards weights and metrics."""

import time
from collections.abc import Sequence

from mindspore import Tensor

from resnetboost_trainer.config import Config
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.data.corrupt import Corrupt
from resnetboost_trainer.data.loader import DataLoader
from resnetboost_trainer.distributed import virtual_ranks
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import objective
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim import schedule
from resnetboost_trainer.profiling.step_times import DATA, GRADIENT, OPTIMIZER, REDUCTION, Step, Window


class TimedSteps:
    """Runs and measures the first steps of a stage on new weights; all methods are collectives."""

    def __init__(self, config: Config, dataset: registry.Dataset, communicator: Communicator, total: int) -> None:
        """Build the stage's program for `total` steps. A collective."""
        self.config, self.communicator, self._done = config, communicator, 0
        size, samples = communicator.size, len(dataset.train.labels)
        virtual = virtual_ranks.of(config, size)
        self.global_batch = virtual.count * config.local_batch_size * config.accumulation_steps
        parts = virtual.each * config.accumulation_steps
        self.share = sampler.DistributedSampler(config.seed, self.global_batch, communicator.rank, size, samples, parts)
        self.network = resnet.configured(config.model, dataset.channels, config.seed, config.precision)
        self.objective = objective.of(config, dataset, communicator)
        self.program = Program(config, self.network, communicator, objective=self.objective)
        corrupt = Corrupt(dataset.max_corrupt_images, virtual.each)
        self._feed = DataLoader(dataset.train, corrupt, dataset.workers, dataset.mixing, dataset.autotune)
        self._batches = self._feed.batches(self.share.steps(0, total))

    def take(self, count: int) -> Sequence[Step]:
        """Run and measure the next `count` steps, the same number on every rank. Raises the errors of a step."""
        return [self._step() for _ in range(count)]

    def leave(self) -> None:
        """Wait for the other ranks; no step may follow."""
        self._feed.close()
        self.communicator.leave()

    def _step(self) -> Step:
        windows: list[Window] = []
        now = schedule.at(self.config, self._done, self.share.per_epoch)
        begun = time.perf_counter()
        self.objective.begin(next(self.share.steps(self._done, self._done + 1)).whole)
        images, labels, waited = self._batch()
        for _ in range(self.share.parts - 1):
            started = time.time_ns()
            self.program.accumulate(images, labels, now)
            windows.append(Window(GRADIENT, started, time.time_ns()))
            images, labels, seconds = self._batch()
            waited += seconds
        started = time.time_ns()
        record = self.program.step(images, labels, now, stop=False)
        ended = time.perf_counter()
        windows += _windows(record, started, sum(window.seconds for window in windows))
        self._done += 1
        return Step(ended - begun, _parts(record, waited), windows, record.curvature is not None)

    def _batch(self) -> tuple[Tensor, Tensor, float]:
        """Return the next batch as (images, labels, seconds waited)."""
        started = time.perf_counter()
        batch = next(self._batches)
        images, labels = Tensor(batch.images), Tensor(batch.labels)
        return images, labels, time.perf_counter() - started


def _parts(record: StepRecord, waited: float) -> dict[str, float]:
    return {
        DATA: waited,
        GRADIENT: record.gradient_seconds,
        REDUCTION: record.collective_seconds,
        OPTIMIZER: record.update_seconds,
    }


def _windows(record: StepRecord, started_ns: int, accumulated: float) -> list[Window]:
    """Return the parts' windows, consecutive from the step's start; `accumulated` gradient seconds came before it."""
    across = record.update_collective_seconds
    seconds = (
        (GRADIENT, record.gradient_seconds - accumulated),
        (REDUCTION, record.collective_seconds - across),
        (OPTIMIZER, record.update_seconds + across),
    )
    windows = []
    for part, lasting in seconds:
        ended_ns = started_ns + round(1e9 * lasting)
        windows.append(Window(part, started_ns, ended_ns))
        started_ns = ended_ns
    return windows
