"""What THOR captures of a network that runs as one operator, against the same network layer by layer."""

from collections.abc import Sequence
from typing import NamedTuple

import mindspore
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.models import trunk
from resnetboost_trainer.optim.thor import layers
from resnetboost_trainer.optim.thor.capture import Capture
from support import familygradients
from support.familygradients import BATCH, KINDS, SCALE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operators")]

Arrays = dict[str, NDArray[np.float32]]

PIXELS = 33  # planes of odd sizes: no whole number of vectors
REPEATED = ("small", "squeezing")


class Seen(NamedTuple):
    """Of a step: the gradients, and the inputs and the outputs' gradients of the layers."""

    gradients: Arrays
    captured: Arrays


class Step(nn.Cell):  # type: ignore[misc]
    """(images, labels) -> the gradients by parameter and by probe. A graph in either mode, as in THOR."""

    def __init__(self, network: nn.Cell, probes: Sequence[object] = ()) -> None:
        super().__init__()
        self.network, self.loss = network, CrossEntropy(0.1)
        self.gradient = ops.grad(self.forward, None, ParameterTuple([*network.trainable_params(), *probes]))
        self.set_train(True)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.network(images), labels) * SCALE

    @mindspore.jit  # type: ignore[untyped-decorator]
    def construct(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = self.gradient(images, labels)
        return gradients


def batch() -> tuple[Tensor, Tensor]:
    images = np.random.default_rng(2).standard_normal((BATCH, 3, PIXELS, PIXELS), np.float32)
    return Tensor(images), Tensor(np.arange(BATCH, dtype=np.int32))


def seen(network: nn.Cell, exclude: Sequence[str] = (), steps: int = 1) -> list[Seen]:
    """Some equal steps that capture, in one graph."""
    learning = [parameter.name for parameter in network.trainable_params()]
    found, _ = layers.find(network, 128, exclude)
    kinds = [f"{layer.name}.{kind}" for layer in found for kind in ("input", "gradient")]
    capture = Capture(network, found)
    step, results = Step(network, capture.probes), []
    with capture.attached():
        for _ in range(steps):
            values = [gradient.asnumpy().copy() for gradient in step(*batch())]
            gradients, captured = values[: len(learning)], values[len(learning) :]
            results.append(Seen(dict(zip(learning, gradients, strict=True)), dict(zip(kinds, captured, strict=True))))
    return results


def layer_by_layer(kind: str) -> Seen:
    network = familygradients.network(kind)
    trunk.separate(network)
    return seen(network)[0]


def assert_close(found: Arrays, expected: Arrays) -> None:
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.items()
    }
    errors = {name: familygradients.error(value, expected[name]) for name, value in found.items()}
    assert {name: error for name, error in errors.items() if not error <= familygradients.BOUND} == {}


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert [name for name in expected if not np.array_equal(found[name], expected[name])] == []


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_captured_is_that_of_the_layers(kind: str) -> None:
    network = familygradients.network(kind)
    (found,), expected = seen(network), layer_by_layer(kind)
    assert network.fuses_layers
    assert_close(found.gradients, expected.gradients)
    assert_close(found.captured, expected.captured)


@pytest.mark.parametrize("kind", REPEATED)
def test_a_step_that_captures_repeats_its_bits_and_has_the_gradients_of_one_that_does_not(kind: str) -> None:
    first, second = seen(familygradients.network(kind), steps=2)
    assert_equal(second.captured, first.captured)
    network = familygradients.network(kind)
    plain = zip(first.gradients, Step(network)(*batch()), strict=True)
    assert_equal(first.gradients, {name: gradient.asnumpy() for name, gradient in plain})


def test_a_network_with_an_excluded_layer_is_captured_layer_by_layer() -> None:
    network = familygradients.network("small")
    before = network.trunk
    (found,), expected = seen(network, exclude=("layer1",)), layer_by_layer("small").captured
    assert network.fuses_layers
    assert network.trunk is before
    assert_equal(found.captured, {name: value for name, value in expected.items() if not name.startswith("layer1")})
