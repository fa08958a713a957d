"""LAMB's updates against the paper's algorithm 2 in float64, in both of MindSpore's modes, and its state."""

from collections.abc import Sequence

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.optim.lamb import Lamb

SETTINGS = config.Lamb(beta1=0.8, beta2=0.99, epsilon=1e-6, weight_decay=0.125)
SHAPES = {"convolution": (2, 3, 1, 1), "dense": (3, 2), "bias": (3,)}
PARTS = [slice(0, 6), slice(6, 12), slice(12, 15)]
STEPS, RATE = 12, 0.1
Floats = NDArray[np.float64]


def first_weights(size: float = 2) -> list[Parameter]:
    generator = np.random.default_rng(1)
    return [
        Parameter(Tensor((size * generator.standard_normal(shape)).astype(np.float32)), name=name)
        for name, shape in SHAPES.items()
    ]


def flat(trained: Sequence[Parameter]) -> Floats:
    values: Floats = np.concatenate([parameter.asnumpy().reshape(-1) for parameter in trained]).astype(np.float64)
    return values


def gradient(step: int, size: float = 1) -> NDArray[np.float32]:
    return (size * np.random.default_rng(step).standard_normal(15)).astype(np.float32)


def reference(weights: Floats, gradients: Sequence[NDArray[np.float32]]) -> Floats:
    """The weights after these gradients: phi is the identity, and the last part is a bias."""
    weights, mean, square = weights.copy(), np.zeros(15), np.zeros(15)
    for t, given in enumerate(gradients, 1):
        mean = SETTINGS.beta1 * mean + (1 - SETTINGS.beta1) * given.astype(np.float64)
        square = SETTINGS.beta2 * square + (1 - SETTINGS.beta2) * given.astype(np.float64) ** 2
        direction = mean / (1 - SETTINGS.beta1**t) / (np.sqrt(square / (1 - SETTINGS.beta2**t)) + SETTINGS.epsilon)
        for place in PARTS[:2]:
            update = direction[place] + SETTINGS.weight_decay * weights[place]
            length, steepness = np.linalg.norm(weights[place]), np.linalg.norm(update)
            weights[place] -= RATE * (length / steepness if length > 0 and steepness > 0 else 1) * update
        weights[PARTS[2]] -= RATE * direction[PARTS[2]]
    return weights


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize(
    ("weight", "size"),
    [(2, 1), (2, 1e-7), (2, 0), (0, 1), (0, 0)],
    ids=["usual", "gradients as small as epsilon", "no gradient", "no weight", "neither"],
)
def test_updates_are_those_of_the_paper(weight: float, size: float) -> None:
    trained = first_weights(weight)
    optimizer, before = Lamb(trained, SETTINGS), flat(trained)
    gradients = [gradient(step, size) for step in range(STEPS)]
    for given in gradients:
        optimizer(Tensor(np.append(given, np.nan).astype(np.float32)), Tensor(RATE, mindspore.float32))
    np.testing.assert_allclose(flat(trained), reference(before, gradients), rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("any_mode")
def test_another_optimizer_with_its_state_goes_on_with_the_same_bits() -> None:
    ends = []
    for resumed_at in (STEPS, 5):
        trained = first_weights()
        optimizer = Lamb(trained, SETTINGS)
        for step in range(STEPS):
            if step == resumed_at:
                saved = {parameter.name: parameter.asnumpy() for parameter in optimizer.state()}
                optimizer = Lamb(trained, SETTINGS)
                for parameter in optimizer.state():
                    parameter.set_data(Tensor(saved[parameter.name]))
            optimizer(Tensor(gradient(step)), Tensor(RATE, mindspore.float32))
        ends.append(flat(trained))
    np.testing.assert_array_equal(ends[0], ends[1])
