"""A network's trunk as one C++ operator against the same network layer by layer.

test_operators_in_networks.py compares the gradients of every network.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.models import trunk
from support import familygradients

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operators")]

KINDS = ("small", "basic", "bottleneck", "squeezing", "deepbasic", "grouped")
# (n, pixels): odd sizes, planes of one pixel, one image whose last planes are one pixel.
SIZES = ((8, 32), (3, 33), (2, 9), (1, 9))


def images(count: int, pixels: int) -> Tensor:
    return Tensor(np.random.default_rng(count).standard_normal((count, 3, pixels, pixels), np.float32))


@functools.cache
def fused(kind: str) -> nn.Cell:
    """The network of a kind in its evaluation mode, shared by the tests, since it is compiled for a second or more."""
    network = familygradients.network(kind)
    assert network.fuses_layers
    return network.set_train(False)


@pytest.mark.usefixtures("any_mode")
@pytest.mark.parametrize("kind", KINDS)
def test_inference_equals_that_of_the_layers(kind: str) -> None:
    for count, pixels in SIZES:
        x = images(count, pixels)
        found, expected = fused(kind)(x).asnumpy(), _layer_by_layer(kind, count, pixels)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max(), err_msg=f"{x.shape}")


@functools.cache
def _layer_by_layer(kind: str, count: int, pixels: int) -> NDArray[np.float32]:
    mode = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)  # there are no graphs to compile for each size
    network = familygradients.network(kind).set_train(False)
    with trunk.layers_apart(network):
        found: NDArray[np.float32] = network(images(count, pixels)).asnumpy()
    mindspore.set_context(mode=mode)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_inference_with_a_nan_gives_nan(kind: str) -> None:
    network = fused(kind)
    named = dict(network.parameters_and_names())
    for place in ("conv1.weight", "bn1.moving_variance", "layer2.0.conv2.weight", "layer3.0.bn1.beta"):
        parameter = named[place if place in named else "conv1.3.weight"]  # a deep stem has three convolutions
        kept = parameter.asnumpy().copy()
        values = kept.copy()
        values.flat[0] = np.nan
        parameter.set_data(Tensor(values))
        assert np.isnan(network(images(8, 32)).asnumpy()).all(), place
        parameter.set_data(Tensor(kept))
    assert np.isfinite(network(images(8, 32)).asnumpy()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_repeats_its_bits(kind: str) -> None:
    network = familygradients.network(kind)
    first, second = (familygradients.once(network, "GRAPH") for _ in range(2))
    for one, other in ((first.gradients, second.gradients), (first.statistics, second.statistics)):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_images_of_several_sizes_do_not_mix_up() -> None:
    network = fused("basic")
    sizes = ((2, 32), (4, 32), (2, 40))
    once = [network(images(*size)).asnumpy() for size in sizes]
    for size, expected in zip(sizes, once, strict=True):
        assert np.array_equal(network(images(*size)).asnumpy(), expected)


def test_the_gradient_of_images_is_nan_and_never_a_wrong_number() -> None:
    network = familygradients.network("basic").set_train(True)

    def total(x: Tensor) -> Tensor:
        return network(x).sum()

    assert np.isnan(ops.grad(total)(images(2, 32)).asnumpy()).all()


def test_other_networks_run_layer_by_layer() -> None:
    assert not familygradients.network("basic", ("stem",)).fuses_layers
    assert not familygradients.network("basic", precision="BFloat16").fuses_layers


@pytest.mark.parametrize("instructions", ["AVX2", "SSE41"])
def test_a_step_is_right_on_older_cpus(instructions: str) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "support.trunksteps", *KINDS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [f"{kind}:{instructions == 'AVX2'}" for kind in KINDS]


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_no_convolution_runs_in_plain_loops(instructions: str) -> None:
    """On AVX2 the weights' gradients of planes of 2x2 did, and digits trained at a twentieth of the speed."""
    variables = {
        "ONEDNN_MAX_CPU_ISA": instructions,
        "ONEDNN_VERBOSE": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, "-m", "support.tinyplanes"]
    ended = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    ran = re.findall(r",exec,cpu,convolution,([^,]+),", ended.stdout)
    assert len(ran) > 10 and not [kernel for kernel in ran if kernel.startswith("ref")], set(ran)
