"""Each optimizer gives a parameter the rate and decay of its group, in both modes, by both kinds of operators."""

from collections.abc import Callable, Sequence

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.engine import device
from resnetboost_trainer.optim.adamw import AdamW
from resnetboost_trainer.optim.groups import Group, Groups
from resnetboost_trainer.optim.lamb import Lamb
from resnetboost_trainer.optim.lars import Lars
from resnetboost_trainer.optim.sgd import Momentum
from support.familygradients import mindspores_operators

RATE, DECAY, STEPS = 0.25, 0.125, 4
PLAIN = config.Momentum(momentum=0.75, weight_decay=DECAY)
NESTEROVS = config.Momentum(momentum=0.75, weight_decay=DECAY, nesterov=True)
KINDS: dict[str, Callable[[Sequence[Parameter], Groups | None], nn.Cell]] = {
    "Momentum": lambda trained, own: Momentum(trained, PLAIN, own),
    "Nesterov's": lambda trained, own: Momentum(trained, NESTEROVS, own),
    "LARS": lambda trained, own: Lars(trained, PLAIN, config.Lars(trust_coefficient=0.25), own),
    "AdamW": lambda trained, own: AdamW(trained, config.AdamW(weight_decay=DECAY), own),
    "LAMB": lambda trained, own: Lamb(trained, config.Lamb(weight_decay=DECAY), own),
}
SHAPES = ((2, 3), (4,), (3, 2))
PLACES = np.cumsum([0, 6, 4, 6])
Floats = NDArray[np.float32]


def first_weights() -> list[Parameter]:
    generator = np.random.default_rng(0)
    drawn = [generator.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    return [Parameter(Tensor(values), name=f"w{place}") for place, values in enumerate(drawn)]


def trained(
    kind: str, weights: list[Parameter], own: Groups | None, rate: float = RATE, first: int = 0
) -> list[Floats]:
    """The weights after some steps with their parts of the gradient, which begins at that place."""
    optimizer = KINDS[kind](weights, own)
    place = PLACES[first]
    count = sum(weight.size for weight in weights)
    for step in range(STEPS):
        gradient = np.random.default_rng(step).standard_normal(PLACES[-1]).astype(np.float32)
        optimizer(Tensor(gradient[place : place + count]), Tensor(rate, mindspore.float32))
    return [weight.asnumpy() for weight in weights]


def compare_with_each_alone(kind: str) -> None:
    factors = (1.0, 0.5, 4.0)
    together = trained(kind, first_weights(), [Group(factor) for factor in factors])
    for place, factor in enumerate(factors):
        (alone,) = trained(kind, [first_weights()[place]], None, RATE * factor, place)
        np.testing.assert_allclose(together[place], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_with_a_factor_moves_as_one_alone_at_that_rate(kind: str) -> None:
    compare_with_each_alone(kind)


@pytest.mark.parametrize("kind", ["Momentum", "Nesterov's"])
def test_it_does_so_by_mindspores_operators(kind: str) -> None:
    device.prepare()
    with mindspores_operators():
        compare_with_each_alone(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_nothing_change_no_bit(kind: str) -> None:
    device.prepare()
    plain, grouped = trained(kind, first_weights(), None), trained(kind, first_weights(), [Group()] * 3)
    for ours, theirs in zip(grouped, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["Momentum", "LARS", "AdamW"])
def test_a_groups_decay_is_for_biases_too_and_0_is_for_none(kind: str) -> None:
    device.prepare()
    bias = trained(kind, [first_weights()[1]], [Group(decay=0.5)], first=1)[0]
    w = first_weights()[1].asnumpy().astype(np.float64)
    v, mean, square = np.zeros(4), np.zeros(4), np.zeros(4)
    for step in range(STEPS):
        gradient = np.random.default_rng(step).standard_normal(PLACES[-1])[PLACES[1] : PLACES[2]]
        if kind == "AdamW":
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            direction = mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-8)
            w = (1 - RATE * 0.5) * w - RATE * direction
        else:
            v = 0.75 * v + gradient + 0.5 * w
            w = w - RATE * v
    np.testing.assert_allclose(bias, w, rtol=1e-4, atol=1e-5)
    free, decayed = (trained(kind, [first_weights()[0]], [Group(decay=decay)])[0] for decay in (0.0, None))
    assert np.abs(free - decayed).max() > 1e-3
