"""Gradients of ResNet variants on a few small images, with our C++ operators or MindSpore's, in either mode."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mindspore
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.config import Precision
from resnetboost_trainer.engine.loss import CrossEntropy
from resnetboost_trainer.kernels import library
from resnetboost_trainer.models import arch, freeze, resnet
from resnetboost_trainer.models.arch import Large
from resnetboost_trainer.models.init import TORCHVISION, initialise

Arrays = dict[str, NDArray[Any]]

NAMES = (*arch.SMALL, *arch.LARGE)
# One network per kind of stem. KINDS has one per kind of block; deeper networks repeat these.
SHALLOW = ("resnet20", "resnet18")
MODES = {"GRAPH": mindspore.GRAPH_MODE, "PyNative": mindspore.PYNATIVE_MODE}

# Every kind of block, with and without a change of shape; deeper networks repeat these.
KINDS: dict[str, Large | int] = {
    "small": 1,
    "basic": Large((1, 1, 1, 1), bottleneck=False),
    "bottleneck": Large((2, 1, 1, 1), bottleneck=True),
    "squeezing": Large((2, 1, 1, 1), bottleneck=True, squeezes=True),
    "deep": Large((1, 2, 1, 1), bottleneck=True, deep=True),
    "deepbasic": Large((1, 1, 1, 1), bottleneck=False, deep=True),
    "grouped": Large((1, 1, 1, 1), bottleneck=True, cardinality=32, width=4),
}

# Initial scale of branches: with branches as large as shortcuts, deep networks amplify any rounding.
BRANCH = 0.1
BATCH, PIXELS, SCALE = 8, 32, 256.0

# Bound for `error`: rounding changes which side of zero some rectifier inputs are on, worth up to 0.022 in resnet50. A
# wrong gradient differs by a tenth and more.
BOUND = 0.05


class Found(NamedTuple):
    """Results of a training step: the loss, gradients by parameter, and running statistics after it."""

    loss: float
    gradients: Arrays
    statistics: Arrays


@contextlib.contextmanager
def mindspores_operators() -> Iterator[None]:
    """Build networks as on a machine without our C++ operators."""
    built = library.FILE
    library.FILE = Path("not/built/operators.so")
    library.usable.cache_clear()
    try:
        yield
    finally:
        library.FILE = built
        library.usable.cache_clear()


def network(name: str, frozen: Sequence[str] = (), precision: Precision = "Float32") -> nn.Cell:
    """One of `NAMES` or `KINDS`, with those parts frozen."""
    form = KINDS.get(name)
    if form is None:
        built = resnet.build(name, 10, 3, precision=precision)
    else:
        built = (
            resnet.SmallResNet(form, 10, 3, precision)
            if isinstance(form, int)
            else resnet.ResNet(form, 10, 3, precision)
        )
        initialise(built, 0, TORCHVISION)
    generator = np.random.default_rng(1)
    values = dict(built.parameters_and_names())
    last = "bn3" if "layer1.0.bn3.gamma" in values else "bn2"
    for key, value in values.items():
        if key.endswith(("beta", "moving_mean")):
            value.set_data(Tensor(0.1 * generator.standard_normal(value.shape, np.float32)))
        elif key.endswith("moving_variance"):
            value.set_data(Tensor(generator.uniform(0.5, 1.5, value.shape).astype(np.float32)))
        elif key.endswith(f"{last}.gamma"):
            value.set_data(Tensor(np.full(value.shape, BRANCH, np.float32)))
    freeze.freeze(built, frozen)
    return built


class Step(nn.Cell):  # type: ignore[misc]
    """(images, labels) -> the loss, and gradients by parameter, of a scaled loss as in half precision.

    Training also flattens them into one buffer, which would take longer to compile than all the rest.
    """

    def __init__(self, trained: nn.Cell) -> None:
        super().__init__()
        self.network, self.loss = trained, CrossEntropy(0.1)
        self.learning = {name: value for name, value in trained.parameters_and_names() if value.requires_grad}
        self.gradient = ops.value_and_grad(self.forward, None, ParameterTuple(self.learning.values()))
        self.set_train(True)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.network(images), labels) * SCALE

    def construct(self, images: Tensor, labels: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss, gradients = self.gradient(images, labels)
        return loss, gradients


def batch() -> tuple[Tensor, Tensor]:
    """Arguments of a step."""
    images = np.random.default_rng(2).standard_normal((BATCH, 3, PIXELS, PIXELS), np.float32)
    return Tensor(images), Tensor(np.arange(BATCH, dtype=np.int32))


def found(step: Step) -> Found:
    """Result of one step; the network is restored afterwards."""
    before = _statistics(step.network)
    loss, gradients = step(*batch())
    values = [gradient.asnumpy() for gradient in gradients]
    statistics = _statistics(step.network)
    for name, value in step.network.parameters_and_names():
        if name in before:
            value.set_data(Tensor(before[name]))
    return Found(float(loss.asnumpy()), dict(zip(step.learning, values, strict=True)), statistics)


def once(trained: nn.Cell, mode: str) -> Found:
    """Result of one step in that mode."""
    mindspore.set_context(mode=MODES[mode])
    try:
        return found(Step(trained))
    finally:
        mindspore.set_context(mode=mindspore.GRAPH_MODE)


def slow(name: str, frozen: Sequence[str] = (), precision: Precision = "Float32") -> Found:
    """Result with MindSpore's operators, uncompiled."""
    with mindspores_operators():
        return once(network(name, frozen, precision), "PyNative")


def error(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Norm of the difference relative to the norm of `other`."""
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(other)), 1e-6))


def wrong(one: Found, other: Found, bound: float) -> dict[str, float]:
    """Parameters whose gradients or statistics differ by more than `bound`, with the error; "loss" is one of them."""
    assert one.gradients.keys() == other.gradients.keys()
    pairs = {name: (value, other.gradients[name]) for name, value in one.gradients.items()}
    pairs |= {name: (value, other.statistics[name]) for name, value in one.statistics.items()}
    pairs["loss"] = np.array([one.loss]), np.array([other.loss])
    errors = {name: error(*pair) for name, pair in pairs.items()}
    return {name: value for name, value in errors.items() if not value <= bound}


def _statistics(trained: nn.Cell) -> Arrays:
    """Copies, because an operator that updates statistics writes to the memory `asnumpy` returns."""
    named = trained.parameters_and_names()
    return {name: value.asnumpy().copy() for name, value in named if name.endswith(arch.STATISTICS)}
