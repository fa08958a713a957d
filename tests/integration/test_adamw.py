"""AdamW's updates against PyTorch's, in both of MindSpore's modes, and its state."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.engine import device
from resnetboost_trainer.optim.adamw import AdamW
from resnetboost_trainer.optim.clip import Clipped

SYSTEM_PYTHON = "/usr/bin/python3"
REFERENCE = Path(__file__).with_name("torch_adamw.py")
STEPS, SHAPE, COUNT = 30, (4, 3, 1, 1), 15
SETTINGS = config.AdamW(beta1=0.8, beta2=0.99, epsilon=1e-6, weight_decay=0.5)
RATES = 0.01 * np.linspace(1, 0.1, STEPS)
Floats = NDArray[np.float32]


def first_weights() -> list[Parameter]:
    generator = np.random.default_rng(0)
    drawn = {"weight": generator.standard_normal(SHAPE), "bias": generator.standard_normal(3)}
    return [Parameter(Tensor(values.astype(np.float32)), name=name) for name, values in drawn.items()]


def gradients() -> Floats:
    """One a step; some of their numbers are tiny, and epsilon counts."""
    sizes = np.logspace(-8, 1, COUNT)
    return (sizes * np.random.default_rng(1).standard_normal((STEPS, COUNT))).astype(np.float32)


def flat(trained: Sequence[Parameter]) -> Floats:
    values: Floats = np.concatenate([parameter.asnumpy().reshape(-1) for parameter in trained])
    return values


def update(optimizer: AdamW | Clipped, steps: Sequence[int]) -> None:
    given = gradients()
    for step in steps:
        optimizer(Tensor(given[step]), Tensor(RATES[step], mindspore.float32))


@pytest.fixture(scope="module")
def pytorchs(tmp_path_factory: pytest.TempPathFactory) -> Floats:
    """The weights after each step of PyTorch's AdamW."""
    if subprocess.run([SYSTEM_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip(f"no reference: {SYSTEM_PYTHON} has no torch; apt-get install python3-torch")
    folder = tmp_path_factory.mktemp("adamw")
    weight, bias = (parameter.asnumpy() for parameter in first_weights())
    settings = [SETTINGS.beta1, SETTINGS.beta2, SETTINGS.epsilon, SETTINGS.weight_decay]
    np.savez(folder / "inputs.npz", weight=weight, bias=bias, settings=settings, gradients=gradients(), rates=RATES)
    subprocess.run([SYSTEM_PYTHON, str(REFERENCE), str(folder)], check=True)
    found: Floats = np.load(folder / "outputs.npz")["steps"]
    return found


@pytest.mark.usefixtures("any_mode")
def test_updates_are_pytorchs(pytorchs: Floats) -> None:
    trained = first_weights()
    optimizer = AdamW(trained, SETTINGS)
    for step in range(STEPS):
        update(optimizer, [step])
        np.testing.assert_allclose(flat(trained), pytorchs[step], rtol=2e-6, atol=2e-7)


@pytest.mark.usefixtures("any_mode")
def test_another_optimizer_with_its_state_goes_on_with_the_same_bits() -> None:
    whole, resumed = first_weights(), first_weights()
    update(AdamW(whole, SETTINGS), range(STEPS))
    before = AdamW(resumed, SETTINGS)
    update(before, range(7))
    after = AdamW(resumed, SETTINGS)
    for old, new in zip(before.state(), after.state(), strict=True):
        assert old.name == new.name
        new.set_data(Tensor(old.asnumpy()))
    update(after, range(7, STEPS))
    np.testing.assert_array_equal(flat(resumed), flat(whole))


def test_a_mean_without_memory_is_the_gradient() -> None:
    device.prepare()
    trained = first_weights()
    before, given = flat(trained), gradients()[0]
    optimizer = AdamW(trained, config.AdamW(beta1=0, beta2=0, epsilon=1e-8, weight_decay=0))
    optimizer(Tensor(given), Tensor(0.5, mindspore.float32))
    expected = before - 0.5 * given.astype(np.float64) / (np.abs(given.astype(np.float64)) + 1e-8)
    np.testing.assert_allclose(flat(trained), expected, rtol=1e-5)


@pytest.mark.usefixtures("any_mode")
def test_a_clipped_gradient_counts_with_its_new_length() -> None:
    clipped, free = first_weights(), first_weights()
    given = 50 * gradients()[0]
    Clipped(AdamW(clipped, SETTINGS), 1e-3)(Tensor(given), Tensor(0.5, mindspore.float32))
    shorter = (given * (1e-3 / np.linalg.norm(given))).astype(np.float32)
    AdamW(free, SETTINGS)(Tensor(shorter), Tensor(0.5, mindspore.float32))
    np.testing.assert_allclose(flat(clipped), flat(free), rtol=1e-4, atol=1e-6)
