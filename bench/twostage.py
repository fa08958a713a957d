"""Test accuracy of a run that stops early and finishes in its principal subspace, against its alternatives.

MindSpore's tutorial scaled down (the tutorial's numbers in brackets): a linear schedule over 18 epochs (90) stops after
14 (70), and 2 epochs (2) follow in the subspace of the last 40 snapshots (40), of 32 components (32). The alternatives
have the same 16 epochs in all: a schedule over 16 epochs, the usual choice (`annealed`), and the schedule over 18 cut
off at 16, which the tutorial compares with (`cutoff`; there 80 of 90). Network, data, batch and order are the same;
each has the best of three learning rates, by the mean accuracy of four seeds on the test set that is reported.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mindspore import Tensor, nn
from rich.console import Console
from rich.table import Table

from bench import trainer
from bench.convergence import mnist_5k
from bench.entries import Entry, ratio
from bench.networks import ThreeConvolutions
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import snapshots
from resnetboost_trainer.checkpoint.arrays import Arrays
from resnetboost_trainer.checkpoint.state import MODEL, shard
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.distributed.communicator import Communicator, Floats
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.evaluator import Evaluation
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.metrics.record import EvaluationRecord
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim import schedule
from resnetboost_trainer.optim.pca import gram
from resnetboost_trainer.optim.pca.subspace import Basis

SEEDS = 4
RATES = (0.05, 0.1, 0.2)
STOPPED, SCHEDULE, TOTAL = 14, 18, 16
SNAPSHOTS_PER_EPOCH, KEPT, COMPONENTS = 5, 40, 32
FINISHES = {"bfgs": "BFGS", "sgd": "SGD"}


class Ended(msgspec.Struct, frozen=True):
    """Final accuracy and loss of a run, and its training seconds without steps that compiled."""

    result: EvaluationRecord
    seconds: float


FIGURES: dict[str, tuple[Callable[[Ended], float], str]] = {
    "accuracy": (lambda ended: ended.result.top1, "top-1"),
    "test_loss": (lambda ended: ended.result.loss, "nats"),
    "seconds": (lambda ended: ended.seconds, "s"),
}

Runs = dict[str, dict[float, list[Ended]]]  # by training method and its learning rate, one per seed


def measure() -> list[Entry]:
    """resnet20 on digits, and three convolutions on 5000 MNIST digits."""
    device.prepare()
    with tempfile.TemporaryDirectory() as folder:
        mnist = {"name": "npz", "path": str(mnist_5k(Path(folder)))}
        return [
            *_compare("", lambda seed: resnet.build("resnet20", 10, 1, seed), {"name": "digits"}),
            *_compare("_mnist5k", ThreeConvolutions, mnist),
        ]


def _compare(name: str, make: Callable[[int], nn.Cell], dataset: dict[str, str]) -> list[Entry]:
    started = time.perf_counter()
    trial = Trial(make, dataset)
    runs: Runs = {way: {rate: [] for rate in RATES} for way in ("annealed", "cutoff", *FINISHES)}
    for seed in range(SEEDS):
        for rate in RATES:
            for way, ended in trial.run(rate, seed).items():
                runs[way][rate].append(ended)
    best = {way: max(rates.items(), key=lambda item: _accuracy(item[1])) for way, rates in runs.items()}
    _show(name.strip("_") or "digits, resnet20", best, time.perf_counter() - started)
    chosen = {way: ended for way, (_, ended) in best.items()}
    return [
        found
        for finish in FINISHES
        for other in ("annealed", "cutoff")
        for found in _entries(f"pca_{{}}_vs_{other}{'' if finish == 'bfgs' else '_sgd'}{name}", chosen, finish, other)
    ]


def _entries(name: str, chosen: dict[str, list[Ended]], own: str, other: str) -> list[Entry]:
    """Ratios of accuracy, of error, and of seconds; values are means, spreads are over single seeds."""
    baseline = f"{other}, {TOTAL} epochs, at its best rate, mean of the seeds"
    return [
        _of_means(name.format(what), [[pick(ended) for ended in chosen[way]] for way in (own, other)], unit, baseline)
        for what, (pick, unit) in FIGURES.items()
    ]


class Trial:
    """One network and its programs, compiled once, whose weights and state are reset for each run."""

    def __init__(self, make: Callable[[int], nn.Cell], dataset: dict[str, str]) -> None:
        self.make, self.settings = make, {"dataset": dataset}
        self.network, self.communicator = make(0), Communicator(0, 1)
        first = self._config(0, 0.1, SCHEDULE)
        self.dataset = registry.load(first.dataset, 10)
        self.per_epoch = len(self.dataset.x_train) // trainer.BATCH
        self.weights = list(self.network.trainable_params())
        self.numbers = sum(weight.size for weight in self.weights)
        self.programs = {"momentum": Program(first, self.network, self.communicator)}
        empty = Basis(np.zeros((COMPONENTS, self.numbers), np.float32), self.numbers, 0.0)
        for finish, solver in FINISHES.items():
            configured = self._config(0, 0.1, SCHEDULE, solver)
            self.programs[finish] = Program(configured, self.network, self.communicator, empty)
        self.fresh = {name: program.state.snapshot() or {} for name, program in self.programs.items()}
        self.evaluation = Evaluation(self.network, self.dataset, self.communicator, trainer.BATCH)

    def run(self, rate: float, seed: int) -> dict[str, Ended]:
        """Run every method with that learning rate; those that are cut off share their first epochs."""
        begin = {name: value.asnumpy() for name, value in self.make(seed).parameters_and_names()}
        self._set("momentum", begin)
        annealed = self._train("momentum", self._config(seed, rate, TOTAL), 0, TOTAL)
        found = {"annealed": Ended(self._evaluate("momentum"), annealed)}
        kept: list[Floats] = []
        self._set("momentum", begin)
        cut = self._config(seed, rate, SCHEDULE)
        before = self._train("momentum", cut, 0, STOPPED, kept)
        stopped = {name: value.asnumpy().copy() for name, value in self.network.parameters_and_names()}
        after = self._train("momentum", cut, STOPPED, TOTAL)
        found["cutoff"] = Ended(self._evaluate("momentum"), before + after)
        basis, seconds = self._basis(np.stack(kept[-KEPT:]))
        for finish, solver in FINISHES.items():
            self._set(finish, stopped)
            optimizer = self.programs[finish].update_rule.optimizer  # type: ignore[attr-defined]
            optimizer.columns.values.set_data(Tensor(basis))
            spent = self._train(finish, self._config(seed, rate, SCHEDULE, solver), STOPPED, TOTAL)
            found[finish] = Ended(self._evaluate(finish), before + seconds + spent)
        return found

    def _basis(self, kept: Floats) -> tuple[Floats, float]:
        """The components, and the seconds to compute them."""
        started = time.perf_counter()

        def read(start: int, stop: int) -> Floats:
            return kept[:, start:stop]

        inner = gram.products(read, 0, self.numbers, len(kept))
        basis = gram.basis(gram.components(inner, COMPONENTS), read, 0, self.numbers)
        return basis, time.perf_counter() - started

    def _train(
        self, name: str, configured: config.Config, first: int, last: int, kept: list[Floats] | None = None
    ) -> float:
        """Train epochs `first` to `last`; returns seconds without steps that compile and the benchmark's own work."""
        program, total = self.programs[name], 0.0
        for step in range(first * self.per_epoch, last * self.per_epoch):
            images, labels = self._batch(configured.seed, step)
            moment = schedule.at(configured, step, self.per_epoch)
            started = time.perf_counter()
            outcome = program.step(images, labels, moment, stop=False)
            total += 0.0 if outcome.compiled else time.perf_counter() - started
            if kept is not None and (step + 1) % max(1, self.per_epoch // SNAPSHOTS_PER_EPOCH) == 0:
                kept.append(snapshots.vector(self.weights))
        return total

    def _batch(self, seed: int, step: int) -> tuple[Tensor, Tensor]:
        x, y = self.dataset.x_train, self.dataset.y_train
        chosen = sampler.batch_indices(seed, *divmod(step, self.per_epoch), trainer.BATCH, 0, 1, len(x))
        return Tensor(x[chosen]), Tensor(y[chosen])

    def _set(self, name: str, weights: Arrays) -> None:
        self.programs[name].state.restore(self.fresh[name] | {MODEL: weights, shard(0): weights})

    def _evaluate(self, name: str) -> EvaluationRecord:
        state = self.programs[name].state
        own = state.evaluation_statistics()
        result = self.evaluation.run(lambda: None)
        state.training_statistics(own)
        return result

    def _config(self, seed: int, rate: float, over: int, solver: str | None = None) -> config.Config:
        """A Momentum config whose schedule covers that many epochs, or a PCA config."""
        shape = {"schedule": "Linear", "warmupEpochs": 1, "peak": rate, "scheduleEpochs": over}
        changes: dict[str, Any] = {"seed": seed, "epochs": TOTAL, **self.settings}
        if solver is not None:  # the schedule's rate at that epoch, used without a line search
            changes |= {"algorithm": "PCA", "pca": _pca(solver)}
        return trainer.configuration(learningRate=trainer.settings()["learningRate"] | shape, **changes)


def _pca(solver: str) -> dict[str, Any]:
    """A PCA config with the defaults of a job file."""
    return {
        "components": COMPONENTS,
        "solver": solver,
        "lineSearch": {"contraction": 0.55, "sufficientDecrease": 0.4, "maxTrials": 20},
        "residual": {"momentum": 0.9, "learningRate": 0.001},
    }


def _accuracy(runs: Sequence[Ended]) -> float:
    return statistics.mean(ended.result.top1 for ended in runs)


def _of_means(name: str, values: Sequence[Sequence[float]], unit: str, baseline: str) -> Entry:
    """The ratio of the means instead of the median of ratios: accuracies of few seeds take few values."""
    own, other = values
    mean = statistics.mean(own)
    found = ratio(name, own, other, unit, baseline)
    return msgspec.structs.replace(found, value=mean, ratio=mean / statistics.mean(other))


def _show(name: str, best: dict[str, tuple[float, list[Ended]]], seconds: float) -> None:
    title = f"{name}: means over {SEEDS} seeds, best rate of each; {seconds:.0f} s in all"
    table = Table("", "learning rate", "top-1", "from", "to", "test loss", "seconds", title=title)
    for way, (rate, runs) in best.items():
        tops = [ended.result.top1 for ended in runs]
        loss = statistics.mean(ended.result.loss for ended in runs)
        spent = statistics.mean(ended.seconds for ended in runs)
        cells = (f"{statistics.mean(tops):.2%}", f"{min(tops):.2%}", f"{max(tops):.2%}", f"{loss:.4f}", f"{spent:.1f}")
        table.add_row(way, f"{rate:g}", *cells)
    Console(width=120).print(table)
