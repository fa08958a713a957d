"""The gradient noise of real steps, against gradients of each small batch by themselves; and that measuring it changes
nothing.
"""

import csv
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mindspore import Tensor
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.gradient import Gradient
from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.optim.schedule import StepSchedule
from support import thornetworks, trainerconfig, wholerun

PARTS, SMALL, STEPS = 3, 4, 3
THOR = {"algorithm": "THOR", "thor": trainerconfig.THOR | {"frequency": 2}}
KINDS: dict[str, dict[str, Any]] = {
    "Momentum": {},
    "scaled": {"lossScale": 64},
    "adapting": {"dynamicLossScale": {}},
    "THOR": THOR,
}


class Trainee:
    """A small network trained alone, in steps of several micro batches."""

    def __init__(self, **changes: Any) -> None:
        model = trainerconfig.MODEL | {"numClasses": thornetworks.CLASSES}
        batches = {"accumulationSteps": PARTS, "localBatchSize": SMALL}
        settings = trainerconfig.GOOD | {"model": model} | batches | changes
        self.network = thornetworks.Chain()
        self.config = msgspec.convert(settings, config.Config, strict=False)
        self.program = Program(self.config, self.network, Communicator(0, 1))

    def batches(self, step: int) -> list[tuple[Tensor, Tensor]]:
        images = thornetworks.images(PARTS * SMALL, seed=step)
        labels = np.roll(thornetworks.labels(PARTS * SMALL), step)
        parts = zip(np.split(images, PARTS), np.split(labels, PARTS), strict=True)
        return [(Tensor(some), Tensor(theirs)) for some, theirs in parts]

    def step(self, step: int) -> StepRecord:
        *before, last = self.batches(step)
        now = StepSchedule(step, 0.1, 0.1)
        for images, labels in before:
            self.program.accumulate(images, labels, now)
        return self.program.step(*last, now, stop=False)

    def gradients(self, step: int) -> NDArray[np.float64]:
        """Of each micro batch by itself, (parts, weights)."""
        entropy = CrossEntropy(self.config.label_smoothing, self.config.label_smoothing_over)
        weights = self.network.trainable_params()
        graph = Gradient(self.network, entropy, weights).set_train(True)
        flat = [graph(*batch, Tensor(np.zeros(1, np.float32)))[0].asnumpy() for batch in self.batches(step)]
        size = sum(weight.size for weight in weights)
        found: NDArray[np.float64] = np.stack(flat)[:, :size].astype(np.float64)
        return found

    def weights(self) -> dict[str, NDArray[Any]]:
        return {parameter.name: parameter.asnumpy().copy() for parameter in self.network.trainable_params()}


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_a_step_has_the_variance_of_its_micro_batches_gradients(changes: dict[str, Any]) -> None:
    trainee, plain = Trainee(gradientNoise=True, **changes), Trainee(**changes)
    for step in range(STEPS):
        found = trainee.gradients(step)
        record, without = trainee.step(step), plain.step(step)
        trace = SMALL * np.var(found, axis=0, ddof=1).sum()
        signal = np.square(found.mean(axis=0)).sum() - trace / (PARTS * SMALL)
        assert record.noise is not None and without.noise is None
        assert record.noise.trace == pytest.approx(trace, rel=1e-3)
        assert record.noise.signal == pytest.approx(signal, rel=1e-3, abs=1e-4 * trace)
        assert record.row()["noise_trace"] == record.noise.trace
        assert (record.loss, record.accuracy, record.gradient_norm) == (
            without.loss,
            without.accuracy,
            without.gradient_norm,
        )
    for name, value in plain.weights().items():
        np.testing.assert_array_equal(trainee.weights()[name], value, err_msg=name)


def columns(run: wholerun.Run) -> dict[str, NDArray[np.float64]]:
    with (run.out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("noise_trace", "noise_signal", "noise_scale", "loss")
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}


def test_two_ranks_measure_what_one_does_in_two_micro_batches(tmp_path: Path) -> None:
    stage = {"name": "base", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 32, "gradientNoise": True}
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    two = columns(wholerun.completed(tmp_path / "two", wholerun.job(stage)))
    one = columns(wholerun.completed(tmp_path / "one", wholerun.job(stage | {"accumulationSteps": 2}, count=1)))
    assert len(two["loss"]) == 22
    for name, values in two.items():
        np.testing.assert_allclose(values[:5], one[name][:5], rtol=0.02, err_msg=name)
    assert (two["noise_trace"] > 0).all() and np.isfinite(two["noise_scale"][-5:]).all()
