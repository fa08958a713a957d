"""Gradient clipping and layer-wise rates (LARS) before Momentum, against their formulas in float64."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.engine import device
from resnetboost_trainer.optim.clip import Clipped
from resnetboost_trainer.optim.lars import Lars
from resnetboost_trainer.optim.norms import squared_norm
from resnetboost_trainer.optim.sgd import Momentum

MU, DECAY, RATE, TRUST = 0.75, 0.125, 0.5, 0.25
SETTINGS = config.Momentum(momentum=MU, weight_decay=DECAY, nesterov=False)
Floats = NDArray[np.float64]


@pytest.fixture(autouse=True, scope="module")
def graphs() -> None:
    device.prepare()


def parameters(value: float = 2) -> list[Parameter]:
    shapes = {"convolution": (2, 3, 1, 1), "dense": (3, 2), "bias": (3,)}
    generator = np.random.default_rng(1)
    return [
        Parameter(Tensor((value * generator.standard_normal(shape)).astype(np.float32)), name=name)
        for name, shape in shapes.items()
    ]


def flat(trained: list[Parameter]) -> Floats:
    values: Floats = np.concatenate([parameter.asnumpy().reshape(-1) for parameter in trained]).astype(np.float64)
    return values


def gradient(step: int, size: float = 1) -> NDArray[np.float32]:
    return (size * np.random.default_rng(step).standard_normal(15)).astype(np.float32)


@pytest.mark.parametrize(("clip_norm", "is_shorter"), [(0.5, True), (1e6, False)])
def test_a_longer_gradient_is_scaled_down_before_weight_decay_and_another_is_left_alone(
    clip_norm: float, is_shorter: bool
) -> None:
    trained, free = parameters(), parameters()
    clipped, reference = Clipped(Momentum(trained, SETTINGS), clip_norm), Momentum(free, SETTINGS)
    for step in range(3):
        given = gradient(step)
        norm = float(np.linalg.norm(given.astype(np.float64)))
        assert (norm > clip_norm) == is_shorter
        clipped(Tensor(given), Tensor(RATE, mindspore.float32))
        reference(Tensor((given * min(1, clip_norm / norm)).astype(np.float32)), Tensor(RATE, mindspore.float32))
    if is_shorter:
        np.testing.assert_allclose(flat(trained), flat(free), rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(flat(trained), flat(free))


def scaled(weights: Floats, given: Floats, matrix: bool) -> Floats:
    """The gradient of a parameter as Momentum receives it."""
    length, steepness = float(np.linalg.norm(weights)), float(np.linalg.norm(given))
    if not matrix:
        return given
    rate = TRUST * length / (steepness + DECAY * length) if length > 0 and steepness > 0 else 1.0
    return np.asarray(rate * (given + DECAY * weights))


@pytest.mark.parametrize(
    ("value", "size"),
    [(2, 1), (2, 1e-12), (2, 0), (0, 1)],
    ids=["usual", "small gradients", "no gradient", "no weight"],
)
def test_every_weight_matrix_has_a_rate_of_its_own_and_biases_have_none(value: float, size: float) -> None:
    trained = parameters(value)
    optimizer = Lars(trained, SETTINGS, config.Lars(trust_coefficient=TRUST))
    weights, velocity = flat(trained), np.zeros(15)
    for step in range(3):
        given = gradient(step, size)
        optimizer(Tensor(given), Tensor(RATE, mindspore.float32))
        parts = zip(np.split(weights, [6, 12]), np.split(given.astype(np.float64), [6, 12]), range(3), strict=True)
        velocity = MU * velocity + np.concatenate([scaled(w, g, k < 2) for w, g, k in parts])
        weights = weights - RATE * velocity
    np.testing.assert_allclose(flat(trained), weights, rtol=1e-5, atol=1e-6)


def test_lars_is_independent_of_the_gradient_norm_without_decay() -> None:
    free = config.Momentum(momentum=MU, weight_decay=0, nesterov=True)
    ends = []
    for size in (1, 1024):
        trained = parameters()[:2]
        optimizer = Lars(trained, free, config.Lars(trust_coefficient=TRUST))
        for step in range(3):
            optimizer(Tensor(gradient(step, size)[:12]), Tensor(RATE, mindspore.float32))
        ends.append(flat(trained))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-5)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 300_001])
def test_a_norm_is_that_of_all_numbers_and_has_the_same_bits_every_time(size: int) -> None:
    numbers = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    norm, given = Norm(), Tensor(numbers)
    found = {float(norm(given).asnumpy()) for _ in range(20)}
    assert len(found) == 1
    assert found.pop() == pytest.approx(float(np.square(numbers.astype(np.float64)).sum()), rel=1e-5)


class Norm(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Tensor) -> Tensor:
        return squared_norm(x)
