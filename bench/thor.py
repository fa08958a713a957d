"""THOR's cost: a resnet20 step on digits against Momentum's, memory, and a check of the cost model."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from mindspore import Tensor, nn

from bench import trainer
from bench.entries import Entry, figure, ratio, share
from resnetboost_trainer.data import registry, sampler
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.kernels import library
from resnetboost_trainer.optim import schedule
from resnetboost_trainer.optim.schedule import StepSchedule
from resnetboost_trainer.optim.thor import cost, host, layers
from resnetboost_trainer.optim.thor.cost import Shape
from resnetboost_trainer.optim.thor.exchange import Damped, inverted
from resnetboost_trainer.optim.thor.native import Native
from resnetboost_trainer.optim.thor.report import CurvatureUpdate

FREQUENCY, EPOCHS, ROUNDS = 10, 8, 34  # two runs of 8 epochs

# One of ResNet-50's layers, at 8 samples to keep it short: 14 x 14 pixels, 256 channels, 3 x 3.
SAMPLES, CHANNELS, SIZE = 8, 256, 14


def settings(**changes: Any) -> dict[str, Any]:
    """The `thor` block with the CRD's defaults, as the operator writes it."""
    damping = {"initial": 0.1, "decay": 0.5, "decayEpochs": 10, "split": "Pi"}
    rule = {"updateAbove": 0.3, "stopBelow": 0, "smoothing": 0.8}
    return {"frequency": FREQUENCY, "blockSize": 128, "damping": damping, "traceRule": rule} | changes


def measure() -> list[Entry]:
    """Cycles of ten training steps on digits, one with an update, interleaved with Momentum's; memory; cost model."""
    momentum = _Cycles()
    rule = _Cycles(algorithm="THOR", thor=settings())
    every = _Cycles(algorithm="THOR", thor=settings(traceRule={"updateAbove": 0, "stopBelow": 0, "smoothing": 0}))
    measured = [(rule.run(), every.run(), momentum.run()) for _ in range(ROUNDS)]
    by_rule, by_every, theirs = zip(*measured, strict=True)
    print(cost.table(cost.resnet50(1001), samples=32, block_size=128))
    return [
        ratio("thor_step_time_vs_momentum", by_rule, theirs, f"s/{FREQUENCY} steps", "Momentum, in turn"),
        ratio("thor_step_time_vs_momentum_all_layers", by_every, theirs, f"s/{FREQUENCY} steps", "Momentum, in turn"),
        share("thor_layers_updated_share", [_updated_share(rule.updates)], "all layers at all updates"),
        share("thor_update_share", _shares(every, by_every), "the same steps, all layers updated"),
        figure("thor_factor_mib", [_mebibytes(rule.program)], "MiB", "inverses of resnet20's factors"),
        *_model_against_measurement(),
    ]


class _Cycles:
    """A program that trains on digits, `FREQUENCY` steps at a time, repeating the schedules of 8 epochs."""

    def __init__(self, **changes: Any) -> None:
        self.configured = trainer.configuration(epochs=EPOCHS, learningRate=_cosine(), **changes)
        self.program, self.step = trainer.program(1, **changes), 0
        self.dataset = registry.load(self.configured.dataset, 10)
        self.updates: list[CurvatureUpdate] = []
        self.run()
        self.updates.clear()

    def run(self) -> float:
        """Seconds of a cycle."""
        total, x, y = 0.0, self.dataset.x_train, self.dataset.y_train
        for _ in range(FREQUENCY):
            epoch, batch = divmod(self.step, len(x) // trainer.BATCH)
            chosen = sampler.batch_indices(0, epoch, batch, trainer.BATCH, 0, 1, len(x))
            images, labels = Tensor(x[chosen]), Tensor(y[chosen])
            started = time.perf_counter()
            outcome = self.program.step(images, labels, self._moment(len(x) // trainer.BATCH), stop=False)
            total += time.perf_counter() - started
            self.step += 1
            if outcome.curvature is not None:
                self.updates.append(outcome.curvature)
        return total

    def _moment(self, per_epoch: int) -> StepSchedule:
        within = schedule.at(self.configured, self.step % (EPOCHS * per_epoch), per_epoch)
        return msgspec.structs.replace(within, step=self.step)


def _cosine() -> dict[str, Any]:
    rate: dict[str, Any] = trainer.settings()["learningRate"]
    return rate | {"schedule": "Cosine", "peak": 0.02}


def _updated_share(updates: Sequence[CurvatureUpdate]) -> float:
    layers = sum(update.updated + update.kept + update.stopped + update.failed for update in updates)
    return sum(update.updated for update in updates) / layers


def _shares(cycles: _Cycles, seconds: Sequence[float]) -> list[float]:
    return [update.seconds / whole for update, whole in zip(cycles.updates, seconds, strict=True)]


def _mebibytes(program: Program) -> float:
    assert program.curvature is not None
    return float(sum(4 * parameter.size for parameter in program.curvature.preconditioner.state()) / 2**20)


def _model_against_measurement() -> list[Entry]:
    """GFLOP/s of one layer by the cost model's count, beside those of a matrix product of the same size."""
    convolution = nn.Conv2d(CHANNELS, CHANNELS, 3, pad_mode="pad", padding=1)
    (layer,), _ = layers.find(nn.SequentialCell([convolution]), block_size=128)
    generator = np.random.default_rng(0)
    images, gradient = generator.standard_normal((2, SAMPLES, CHANNELS, SIZE, SIZE), np.float32)
    captured = host.Captured(layer, images, gradient, SAMPLES, 1.0)
    operators = library.usable()
    statistics = host if operators is None else Native(operators)
    (factors,) = statistics.all_factors([captured])
    counted = cost.cost([Shape("layer3", CHANNELS, CHANNELS, 9, SIZE**2)], cost.equal(128), SAMPLES)
    damped = [Damped(blocks, 0.1) for blocks in factors]
    product = _rate(lambda: images.reshape(CHANNELS, -1) @ images.reshape(CHANNELS, -1).T, 2 * CHANNELS * images.size)
    covariances = _rate(lambda: statistics.all_factors([captured]), counted.covariances)
    inversion = _rate(lambda: inverted(damped, Communicator(0, 1)), counted.inversion)
    baseline = "a matrix product of as many rows"
    return [
        ratio("thor_covariance_gflops", covariances, product, "GFLOP/s", baseline),
        ratio("thor_inversion_gflops", inversion, product, "GFLOP/s", baseline),
    ]


def _rate(work: Callable[[], object], flop: float) -> list[float]:
    work()
    rates = []
    for _ in range(9):
        started = time.perf_counter()
        work()
        rates.append(flop / (time.perf_counter() - started) / 1e9)
    return rates
