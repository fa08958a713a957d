"""Adasum's benefit: large-batch training on 8 ranks of 32 images each against averaging.

ThreeConvolutions is trained by averaging, by Adasum of changes (Delta) and of gradients (Gradient). Each has the same
number of learning rates to choose from and the same shape of schedule (one epoch of warm-up, then a cosine). Every rate
runs with the first seed, and the best two of each method with the other seeds too; the reported rate is chosen by the
mean epochs to 97 % on the very seeds and test set that are reported. A run that never gets there counts as one epoch
more than it had.

The ranks are simulated in one process: gradients of the 8 local batches one after another by the trainer's own graph,
momentum by rank and the tree of pairs in NumPy with the trainer's own arithmetic. The simulation is first checked
against a real gang, which also gives the seconds of a step. Two things differ from a gang: all ranks update one set of
BN's running statistics in turn, and the seconds to an accuracy are the steps to it times those of a step.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from mindspore import Tensor

from bench import adasum, convergence
from bench.contenders.adasum_rank import CHECKED_STEPS, Plan
from bench.convergence import Best, Run, Runs, Task, Trial
from bench.entries import Entry
from bench.networks import ThreeConvolutions
from resnetboost_trainer import config
from resnetboost_trainer.distributed.adasum import host, passes
from resnetboost_trainer.distributed.adasum.layout import Layout
from resnetboost_trainer.distributed.communicator import Floats
from resnetboost_trainer.engine import device
from resnetboost_trainer.optim import groups
from resnetboost_trainer.optim.schedule import learning_rate

TIMED_STEPS = 20
RANKS, LOCAL_BATCH = 8, 32
RATES = (0.1, 0.2, 0.4, 0.8, 1.6)
FINALISTS = 2
HOWS = ("mean", "Delta", "Gradient")

# Relative to the distance the weights have moved: float32 sums in another order, through BN.
TOLERANCE = 1e-4


def measure() -> list[Entry]:
    """A batch of 256 on digits and on 5000 half-size MNIST digits."""
    device.prepare()
    with tempfile.TemporaryDirectory() as folder:
        mnist = {"name": "npz", "path": str(_halved(convergence.mnist_5k(Path(folder))))}
        tasks = [
            Task("", ThreeConvolutions, {"name": "digits"}, epochs=16),
            Task("_mnist5k", ThreeConvolutions, mnist, epochs=24),
        ]
        return [entry for task in tasks for entry in _compare(task)]


def _halved(path: Path) -> Path:
    """Images of 14 x 14, means of 2 x 2 pixels: on 28 x 28 this network needs some 50 epochs at this batch."""
    arrays = dict(np.load(path))
    for name in ("x_train", "x_test"):
        arrays[name] = arrays[name].reshape(-1, 14, 2, 14, 2).mean((2, 4)).round().astype(np.uint8)
    np.savez(path, **arrays)
    return path


def _compare(task: Task) -> list[Entry]:
    started = time.perf_counter()
    trials = {how: Ranks(task, how) for how in HOWS}
    _measure_steps(trials)
    runs = {how: _runs(trial) for how, trial in trials.items()}
    best = {how: _best(found) for how, found in runs.items()}
    name = f"8 ranks of {LOCAL_BATCH} images, {task.dataset['name']}"
    convergence.show(name, best, time.perf_counter() - started)
    return [
        convergence.entry(
            f"adasum_{unit}_to_97_vs_mean{task.name}{suffix}", pick, best[how], best["mean"], 0.97, "mean"
        )
        for how, suffix in (("Delta", ""), ("Gradient", "_gradient"))
        for unit, pick in (("epochs", Run.epochs_to), ("seconds", Run.seconds_to))
    ]


def _runs(trial: "Ranks") -> Runs:
    runs: Runs = {rate: [trial.run(rate, 0)] for rate in RATES}
    finalists = sorted(runs, key=lambda rate: _merit(runs[rate]))[:FINALISTS]
    return {rate: [*runs[rate], *(trial.run(rate, seed) for seed in range(1, convergence.SEEDS))] for rate in finalists}


def _best(runs: Runs) -> Best:
    return min(runs.items(), key=lambda item: _merit(item[1]))


def _merit(runs: Sequence[Run]) -> tuple[float, ...]:
    """Sort key, smaller is better: mean epochs to 97 %, then to 95 and 98 %, then the final error."""
    means = [statistics.mean(run.epochs_to(target) for run in runs) for target in (0.97, 0.95, 0.98)]
    return (*means, -statistics.mean(run.accuracies[-1] for run in runs))


def _measure_steps(trials: dict[str, "Ranks"]) -> None:
    """One real gang trains by every method in turn: seconds of a step of each, and each one's weights as a check."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for how, trial in trials.items():
            (folder / f"{how}.yaml").write_text(yaml.safe_dump(trial.of_gang(rate=0.1, seed=0)))
        times = adasum.gang(folder, RANKS, Plan(TIMED_STEPS, programs=list(trials)))
        for how, trial in trials.items():
            trial.seconds = statistics.median(times.seconds[how])
            error = trial.check(np.load(folder / f"{how}.npy"))
            print(f"{how}: {trial.seconds * 1000:.0f} ms a step; weights differ by {error:.1e} from the gang's")
            assert error < TOLERANCE


class Ranks(Trial):
    """Simulates several ranks in one process; `seconds` of a step are set from the real gang's."""

    batch, warmup_epochs = RANKS * LOCAL_BATCH, 1.0

    def __init__(self, task: Task, how: str) -> None:
        super().__init__(task, localBatchSize=LOCAL_BATCH)
        self.how, self.seconds = how, 0.0
        self.parameters = list(self.program.network.trainable_params())
        self.sizes = [parameter.size for parameter in self.parameters]
        self.layout = Layout(self.sizes, [0])
        decayed = [np.full(parameter.size, groups.is_matrix(parameter), np.float32) for parameter in self.parameters]
        self.decay = np.float32(self._config(0.1, 0).momentum.weight_decay) * np.concatenate(decayed)
        self.velocities: list[Floats] = []

    def of_gang(self, rate: float, seed: int) -> dict[str, Any]:
        """Settings for a real gang."""
        adasum = {"algorithm": "Adasum", "adasum": {"reduce": self.how, "ranksPerNode": 1}}
        return self.settings(rate, seed) | ({} if self.how == "mean" else adasum)

    def check(self, expected: Floats) -> float:
        """Distance of the weights after some steps from a real gang's, relative to how far they have moved."""
        configured = self._config(rate=0.1, seed=0)
        self._reset(seed=0)
        before = self._weights()
        for step in range(CHECKED_STEPS):
            self._step(configured, *divmod(step, self.per_epoch))
        return float(np.linalg.norm(self._weights() - expected) / np.linalg.norm(expected - before))

    def _reset(self, seed: int) -> None:
        super()._reset(seed)
        count = RANKS if self.how == "Delta" else 1
        self.velocities = [np.zeros(sum(self.sizes), np.float32) for _ in range(count)]

    def _step(self, configured: config.Config, epoch: int, batch: int) -> float:
        gradients = [self._gradient(configured, epoch, batch, rank) for rank in range(RANKS)]
        if self.how == "mean":
            gradients = [np.mean(gradients, axis=0)]
        elif self.how == "Gradient":
            gradients = [self._tree(gradients)]
        weights, momentum = self._weights(), np.float32(configured.momentum.momentum)
        rate = np.float32(learning_rate(configured, epoch * self.per_epoch + batch, self.per_epoch))
        pairs = zip(self.velocities, gradients, strict=True)
        self.velocities = [momentum * velocity + gradient + self.decay * weights for velocity, gradient in pairs]
        self._put(weights - self._tree([rate * velocity for velocity in self.velocities]))
        return self.seconds

    def _gradient(self, configured: config.Config, epoch: int, batch: int, rank: int) -> Floats:
        images, labels = self._images(configured, epoch, batch, rank, RANKS)
        self.program.gradient.set_train(True)
        flat, _ = self.program.gradient(images, labels, Tensor(np.zeros(2, np.float32)))
        found: Floats = flat.asnumpy()[: len(self.decay)].copy()
        return found

    def _tree(self, vectors: Sequence[Floats]) -> Floats:
        """The binary tree of pairs: neighbours first, then neighbouring pairs."""
        while len(vectors) > 1:
            vectors = [self._pair(*vectors[k : k + 2]) for k in range(0, len(vectors), 2)]
        return vectors[0]

    def _pair(self, left: Floats, right: Floats) -> Floats:
        a, b, bounds = left[None], right[None], self.layout.bounds
        product, ours = passes.products(a, b, bounds)
        scalars = np.stack([product, ours, passes.products(b, b, bounds)[1]], axis=1)
        result = np.empty_like(a)
        passes.combine(a, b, bounds, host.coefficients(scalars), result)
        summed: Floats = result[0]
        return summed

    def _weights(self) -> Floats:
        return np.concatenate([parameter.asnumpy().reshape(-1) for parameter in self.parameters])

    def _put(self, weights: Floats) -> None:
        parts = np.split(weights, np.cumsum(self.sizes)[:-1])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.set_data(Tensor(part.reshape(parameter.shape)))
