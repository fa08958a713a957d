"""Dynamic loss scale in training: overflowing steps are skipped, later steps are as without a scale."""

import csv
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from mindspore import Tensor

from resnetboost_trainer.config import Config, DynamicLossScale
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.metrics.record import StepRecord
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim.schedule import StepSchedule
from support import onerank, trainerconfig

pytestmark = pytest.mark.slow

MOMENT = StepSchedule(step=1, learning_rate=0.05, damping=0.0)


def program(scale: DynamicLossScale | None = None) -> Program:
    """A program with that loss scale, which need not be valid for a job."""
    device.prepare()
    configured = msgspec.convert(trainerconfig.GOOD, Config)
    configured = msgspec.structs.replace(configured, dynamic_loss_scale=scale)
    network = resnet.build("resnet20", 10, 1)
    network.conv1.weight.set_data(network.conv1.weight / 1024)  # BN undoes it; gradients are 1024 times as large
    return Program(configured, network, Communicator(0, 1))


def step(program: Program, images: Any) -> StepRecord:
    labels = Tensor((np.arange(8) % 10).astype(np.int32))
    return program.step(Tensor(images), labels, MOMENT, stop=False)


def images(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((8, 1, 8, 8), np.float32)


def weights(program: Program) -> list[Any]:
    return [parameter.asnumpy().copy() for parameter in program.network.trainable_params()]


def test_an_overflowing_step_is_skipped_without_effect_on_later_ones() -> None:
    scaled = program(DynamicLossScale(initial=2.0**127, growth_steps=2))
    plain = program()
    begun = weights(scaled)
    told: list[StepRecord] = []
    while not told or told[-1].left_out:
        assert all((now == before).all() for now, before in zip(weights(scaled), begun, strict=True))
        told.append(step(scaled, images(0)))
    assert len(told) > 1, "it never overflowed"
    assert [outcome.loss_scale for outcome in told] == [2.0 ** (127 - n) for n in range(len(told))]
    assert all(np.isfinite(outcome.loss) and outcome.gradient_norm == 0 for outcome in told[:-1])
    expected = step(plain, images(0))
    assert told[-1].gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-3)
    for now, theirs in zip(weights(scaled), weights(plain), strict=True):
        np.testing.assert_allclose(now, theirs, rtol=0, atol=1e-4)


def test_a_loss_that_is_not_finite_is_no_overflow() -> None:
    broken = images(0)
    broken[0, 0, 0, 0] = np.nan
    with pytest.raises(NumericsError):
        step(program(DynamicLossScale(initial=65536.0, growth_steps=2)), broken)


def test_the_scale_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    config = {"dynamicLossScale": {"initial": 2.0**20, "growthSteps": 3}}
    onerank.train(tmp_path, 0, config=config, everySteps=11)
    undisturbed = tmp_path / "checkpoints/uid/base/attempt-0"
    expected = onerank.final_weights(undisturbed)
    saved = safetensors.numpy.load_file(undisturbed / f"step-{onerank.STEPS:08d}/optimizer.safetensors")
    assert float(saved["loss_scale.factor"]) == 2.0**24
    assert float(saved["loss_scale.steps"]) == onerank.STEPS % 3
    for number in (22, 33, 44):
        shutil.rmtree(undisturbed / f"step-{number:08d}")
    onerank.train(tmp_path, 1, config=config, everySteps=11)
    assert onerank.final_weights(tmp_path / "checkpoints/uid/base/attempt-1") == expected
    with (undisturbed / "metrics.csv").open() as file:
        assert len(list(csv.DictReader(file))) == onerank.STEPS
