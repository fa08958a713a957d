"""THOR's device operators and its C++ operators against NumPy on the host."""

from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer.kernels import library
from resnetboost_trainer.models.layers import conv
from resnetboost_trainer.optim.thor import device, host, layers
from resnetboost_trainer.optim.thor.host import Captured
from resnetboost_trainer.optim.thor.native import Native

Floats = NDArray[np.float32]

SAMPLES, LOSS_SCALE = 4, 8.0
TOLERANCE = 2e-6


@pytest.fixture(scope="module", autouse=True)
def graph_mode() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")


def conv2d(*args: Any, **kwargs: Any) -> nn.Cell:
    return nn.Conv2d(*args, weight_init="normal", **kwargs)


IMAGE = (SAMPLES, 6, 9, 7)
CASES: dict[str, tuple[Callable[[], nn.Cell], tuple[int, ...]]] = {
    "3x3 convolution of this trainer": (lambda: conv.Conv2d(6, 5, 3, 1, 1), IMAGE),
    "1x1 at stride 2": (lambda: conv.Conv2d(6, 5, 1, 2), IMAGE),
    "7x7 at stride 2, cut inside the window": (lambda: conv.Conv2d(6, 5, 7, 2, 3), IMAGE),
    "padding same at stride 2": (lambda: conv2d(6, 5, 3, stride=2), IMAGE),
    "without padding, pixels left over": (lambda: conv2d(6, 5, 3, stride=2, pad_mode="valid"), (SAMPLES, 6, 8, 10)),
    "another padding, stride and dilation by axis": (
        lambda: conv2d(6, 5, (3, 2), stride=(1, 2), pad_mode="pad", padding=(0, 2, 1, 0), dilation=(2, 1)),
        IMAGE,
    ),
    "groups": (lambda: conv2d(6, 9, 3, pad_mode="pad", padding=1, group=3), IMAGE),
    "depthwise": (lambda: conv2d(6, 6, 3, pad_mode="pad", padding=1, group=6), IMAGE),
    "one position": (lambda: conv2d(6, 5, (9, 7), pad_mode="valid"), IMAGE),
    "dense": (lambda: nn.Dense(50, 23), (SAMPLES, 50)),
    "dense on every token": (lambda: nn.Dense(50, 23), (SAMPLES, 3, 50)),
    "embedding": (lambda: nn.Embedding(11, 30), (SAMPLES, 5)),
    "layer norm": (lambda: nn.LayerNorm((13,)), (SAMPLES, 13)),
    "layer norm on every token": (lambda: nn.LayerNorm((13,), epsilon=0.1), (SAMPLES, 3, 13)),
}


def example(name: str, block_size: int, half: bool = False) -> Captured:
    """A layer with a random input of positive mean, as after ReLU, and a random output gradient."""
    build, shape = CASES[name]
    cell = build()
    generator = np.random.default_rng(0)
    (layer,), _ = layers.find(nn.SequentialCell([cell]), block_size)
    if layer.form.kind == "embedding":
        tokens = generator.integers(0, layer.form.outputs, shape).astype(np.int32)
        gradient = generator.normal(size=(*shape, layer.form.columns)).astype(np.float32)
        return Captured(layer, tokens, gradient, SAMPLES, LOSS_SCALE)
    images = generator.normal(1, 1, shape).astype(np.float32)
    gradient = generator.normal(size=cell(Tensor(images)).shape).astype(np.float32)
    dtype = np.float16 if half else np.float32
    return Captured(layer, images.astype(dtype), gradient.astype(dtype), SAMPLES, LOSS_SCALE)


def on_device(captured: Captured) -> Captured:
    return Captured(
        captured.layer, Tensor(captured.input), Tensor(captured.gradient), captured.samples, captured.loss_scale
    )


def assert_the_same(captured: Captured) -> None:
    assert device.traces(on_device(captured)) == pytest.approx(host.traces(captured), rel=TOLERANCE)
    assert_equal(device.factors(on_device(captured)), host.factors(captured))
    operators = library.usable()
    if operators is not None:
        native = Native(operators)
        assert native.all_traces([captured]) == [pytest.approx(host.traces(captured), rel=TOLERANCE)]
        assert_equal(native.all_factors([captured])[0], host.factors(captured))


def assert_equal(got: list[Floats], expected: list[Floats]) -> None:
    assert [each.shape for each in got] == [each.shape for each in expected]
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == np.float32
        assert np.abs(one - other).max() <= TOLERANCE * np.abs(other).max()


@pytest.mark.parametrize("name", CASES)
def test_traces_and_factors_are_the_hosts(name: str) -> None:
    assert_the_same(example(name, 20))


@pytest.mark.parametrize("block_size", [1, 4, 1000])
def test_blocks_of_any_size(block_size: int) -> None:
    for name in ("groups", "dense"):
        assert_the_same(example(name, block_size))


@pytest.mark.parametrize("name", ["3x3 convolution of this trainer", "dense", "layer norm"])
def test_half_precision_is_summed_in_single_precision(name: str) -> None:
    assert_the_same(example(name, 20, half=True))


def test_layers_alike_in_form_but_not_in_place_or_shape_do_not_mix() -> None:
    cells = [conv2d(6, 5, 3, stride=2), conv2d(6, 5, 3, stride=2, pad_mode="valid")]
    found, _ = layers.find(nn.SequentialCell(cells), 20)
    assert found[0].form == found[1].form
    generator = np.random.default_rng(0)
    for layer, size in ((found[0], 4), (found[1], 4), (found[0], 5)):
        images = generator.normal(size=(SAMPLES, 6, size, size)).astype(np.float32)
        gradient = generator.normal(size=layer.cell(Tensor(images)).shape).astype(np.float32)
        assert_the_same(Captured(layer, images, gradient, SAMPLES, LOSS_SCALE))


def test_another_batch_needs_no_other_layer() -> None:
    (layer,), _ = layers.find(nn.SequentialCell([nn.LayerNorm((13,))]), 20)
    generator = np.random.default_rng(0)
    for samples, scale in ((4, 1.0), (2, 1.0), (2, 1024.0)):
        x, d = (generator.normal(size=(samples, 3, 13)).astype(np.float32) for _ in range(2))
        assert_the_same(Captured(layer, x, d, samples, scale))


def test_traces_of_all_layers_come_in_their_order() -> None:
    everything = [example(name, 20) for name in CASES]
    expected = np.array([host.traces(one) for one in everything])
    assert np.array(device.all_traces([on_device(one) for one in everything])) == pytest.approx(expected, rel=TOLERANCE)
    operators = library.usable()
    if operators is not None:
        assert np.array(Native(operators).all_traces(everything)) == pytest.approx(expected, rel=TOLERANCE)
        for got, one in zip(Native(operators).all_factors(everything), everything, strict=True):
            assert_equal(got, host.factors(one))


def test_trace_of_the_factors_is_the_trace() -> None:
    for name in CASES:
        captured = on_device(example(name, 20))
        of_factors = [float(np.trace(blocks, axis1=1, axis2=2).sum()) for blocks in device.factors(captured)]
        assert of_factors == pytest.approx(device.traces(captured)[: len(of_factors)], rel=1e-5)
