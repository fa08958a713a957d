"""C++ operators against float64 formulas, called as MindSpore calls them; and training without the library."""

import ctypes
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops

from resnetboost_trainer.kernels import library
from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.models.layers.norm import BatchNorm
from support.examples import examples

pytestmark = pytest.mark.usefixtures("operators")

Floats = npt.NDArray[Any]
Window = tuple[int, int, int]


def call(name: str, *tensors: Floats) -> int:
    """Call one operator by MindSpore's convention: the last tensors are its outputs."""
    count = len(tensors)
    shapes = [(ctypes.c_int64 * tensor.ndim)(*tensor.shape) for tensor in tensors]
    pointers = [ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)) for shape in shapes]
    return int(
        getattr(ctypes.CDLL(str(library.FILE)), name)(
            count,
            (ctypes.c_void_p * count)(*[tensor.ctypes.data for tensor in tensors]),
            (ctypes.c_int * count)(*[tensor.ndim for tensor in tensors]),
            (ctypes.POINTER(ctypes.c_int64) * count)(*pointers),
            (ctypes.c_char_p * count)(*[str(tensor.dtype).encode() for tensor in tensors]),
            None,
            None,
        )
    )


def convolved(x: Floats, weights: Floats, stride: int, padding: int) -> tuple[Floats, Floats]:
    """Convolution by definition in float64, and the patches (n, h', w', c, k, k)."""
    size = weights.shape[-1]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (1, 1, size, size))[:, :, ::stride, ::stride, 0, 0]
    patches = patches.transpose(0, 2, 3, 1, 4, 5)
    return np.einsum("nhwcij,ocij->nohw", patches, weights), patches


def gradients(x: Floats, weights: Floats, dy: Floats, stride: int, padding: int) -> tuple[Floats, Floats]:
    """Gradients with respect to images and weights, in float64."""
    _, patches = convolved(x, weights, stride, padding)
    size, (n, c, h, w) = weights.shape[-1], x.shape
    dx = np.zeros((n, c, h + 2 * padding, w + 2 * padding))
    for i, j in np.ndindex(dy.shape[2:]):
        part = np.einsum("no,ocij->ncij", dy[:, :, i, j].astype(np.float64), weights)
        dx[:, :, i * stride : i * stride + size, j * stride : j * stride + size] += part
    return dx[:, :, padding : padding + h, padding : padding + w], np.einsum("nhwcij,nohw->ocij", patches, dy)


def near(found: Floats, expected: Floats) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@examples(60)
@given(
    batch=st.integers(1, 4),
    channels=st.tuples(st.sampled_from([1, 3, 8, 16, 33]), st.sampled_from([1, 7, 16, 32])),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    window=st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(0, 3)),
    seed=st.integers(0, 9),
)
def test_a_convolution_and_its_gradients_are_those_of_the_formula_to_the_same_bits_every_time(
    batch: int, channels: tuple[int, int], size: tuple[int, int], window: Window, seed: int
) -> None:
    kernel, stride, padding = window
    padding = min(padding, kernel - 1)
    size = max(size[0], kernel - 2 * padding), max(size[1], kernel - 2 * padding)
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((batch, channels[0], *size), np.float32)
    weights = generator.standard_normal((channels[1], channels[0], kernel, kernel), np.float32)
    expected, _ = convolved(x, weights, stride, padding)
    dy = generator.standard_normal(expected.shape, np.float32)
    form = np.array([stride, padding], np.int32)
    found = []
    for _ in range(2):
        y, dx, dweights = np.empty_like(dy), np.empty_like(x), np.empty_like(weights)
        assert call("convolution", x, weights, form, y) == 0
        assert call("convolution_images", x, weights, dy, form, dx) == 0
        assert call("convolution_weights", x, weights, dy, form, dweights) == 0
        found.append((y, dx, dweights))
    dx, dweights = np.empty_like(x), np.empty_like(weights)
    assert call("convolution_gradients", x, weights, dy, form, dx, dweights) == 0
    found[1] = found[1][0], dx, dweights  # computing both at once equals computing each alone
    for first, second, wanted in zip(*found, (expected, *gradients(x, weights, dy, stride, padding)), strict=True):
        near(first, wanted)
        np.testing.assert_array_equal(first, second)


@examples(25)
@given(
    groups=st.sampled_from([2, 4, 6, 32]),
    channels=st.tuples(st.sampled_from([1, 3, 4, 8, 16]), st.sampled_from([1, 4, 8, 16])),
    window=st.sampled_from([(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 2, 2)]),
    seed=st.integers(0, 9),
)
def test_each_group_of_a_convolution_sees_its_own_channels(
    groups: int, channels: tuple[int, int], window: Window, seed: int
) -> None:
    """Whether oneDNN computes groups by themselves or, with few channels each, several as one."""
    kernel, stride, padding = window
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2, groups * channels[0], 6, 7), np.float32)
    weights = generator.standard_normal((groups * channels[1], channels[0], kernel, kernel), np.float32)
    parts = list(zip(np.split(x, groups, 1), np.split(weights, groups), strict=True))
    expected = np.concatenate([convolved(*part, stride, padding)[0] for part in parts], 1)
    dy = generator.standard_normal(expected.shape, np.float32)
    backward = [
        gradients(*part, own, stride, padding) for part, own in zip(parts, np.split(dy, groups, 1), strict=True)
    ]
    form = np.array([stride, padding], np.int32)
    y, dx, dweights = np.empty_like(dy), np.empty_like(x), np.empty_like(weights)
    assert call("convolution", x, weights, form, y) == 0
    near(y, expected)
    assert call("convolution_gradients", x, weights, dy, form, dx, dweights) == 0
    near(dx, np.concatenate([images for images, _ in backward], 1))
    near(dweights, np.concatenate([own for _, own in backward]))


def test_what_is_not_float32_and_what_cannot_be_convolved_is_an_error_not_a_crash() -> None:
    x, weights, form = np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3)), np.array([1, 1], np.int32)
    assert call("convolution", x, weights, form, np.ones_like(x)) == 1
    x, weights = x.astype(np.float32), weights.astype(np.float32)
    assert call("convolution", x[0], weights, form, np.ones_like(x)) == 1
    assert call("convolution", x, weights, np.array([1, 1.0]), np.ones_like(x)) == 1
    assert call("convolution", x, weights, form) == 1
    assert call("convolution", x, np.ones((1, 2, 3, 3), np.float32), form, np.ones_like(x)) == 1
    assert call("convolution", x, weights, np.array([2, 1], np.int32), np.ones_like(x)) == 1  # of stride 1
    assert call("convolution", x, weights, np.array([0, 1], np.int32), np.ones_like(x)) == 1
    assert call("convolution", x, weights, form, np.ones((2, 1, 4, 4), np.float32)) == 1


def floats(*shape: int) -> Floats:
    return np.ones(shape, np.float32)


X, CHANNEL, SETTINGS = (2, 3, 4, 5), (3,), (3,)
OPERATORS: dict[str, list[tuple[int, ...]]] = {
    "normalization": [X, CHANNEL, CHANNEL, CHANNEL, CHANNEL, SETTINGS, X, CHANNEL, CHANNEL],
    "normalization_added": [X, CHANNEL, CHANNEL, CHANNEL, CHANNEL, SETTINGS, X, X, CHANNEL, CHANNEL],
    "normalization_gradients": [X, CHANNEL, CHANNEL, CHANNEL, X, X, SETTINGS, X, CHANNEL, CHANNEL],
    "normalization_added_gradients": [X, CHANNEL, CHANNEL, CHANNEL, X, X, SETTINGS, X, CHANNEL, CHANNEL, X],
    "normalization_inference": [X, CHANNEL, CHANNEL, CHANNEL, CHANNEL, SETTINGS, X],
    "normalization_added_inference": [X, CHANNEL, CHANNEL, CHANNEL, CHANNEL, SETTINGS, X, X],
    "momentum_step": [(10,), (1,), (6,), (2, 3), (4,), (2, 3), (4,), (1,)],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_that_do_not_fit_each_other_are_an_error_not_a_write_beyond_them(name: str) -> None:
    shapes = OPERATORS[name]
    assert call(name, *(floats(*shape) for shape in shapes)) == 0
    for place, shape in enumerate(shapes):
        for other in ((*shape[:-1], shape[-1] + 1), (*shape[:-1], shape[-1] - 1)):
            if 0 in other:
                continue
            wrong = [other if k == place else shape for k, shape in enumerate(shapes)]
            room = [np.ones(4096, np.float32)[: int(np.prod(shape))].reshape(shape) for shape in wrong]
            assert call(name, *room) == 1, (place, other)


def test_a_failed_thread_start_is_no_crash() -> None:
    """As in a container with a limit on processes, or on memory for their stacks."""
    program = f"""
import ctypes, resource
ctypes.CDLL({str(library.onednn())!r})
ours = ctypes.CDLL({str(library.FILE)!r})
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), resource.RLIM_INFINITY))
assert ours.resnetboost_begin(1000) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of 1000 threads: " in done.stderr


def test_mindspores_own_thread_count_is_unchanged() -> None:
    onednn, found = ctypes.CDLL(str(library.onednn())), ctypes.c_int()
    onednn.dnnl_threadpool_interop_set_max_concurrency(97)
    x, weights, form = floats(1, 1, 9, 13), floats(1, 1, 3, 3), np.array([1, 1], np.int32)
    assert call("convolution", x, weights, form, np.empty_like(x)) == 0
    onednn.dnnl_threadpool_interop_get_max_concurrency(ctypes.byref(found))
    assert found.value == 97


class After(nn.Cell):  # type: ignore[misc, unused-ignore]
    """A layer's result times random weights, so that each element has a different gradient."""

    def __init__(self, kind: type[BatchNorm] | None, way: str, channels: int) -> None:
        super().__init__()
        self.norm = BatchNorm(channels) if kind is not None else nn.BatchNorm2d(channels, 1e-5, 0.9)
        self.way, self.ours = way, kind is not None

    def construct(self, x: Tensor, shortcut: Tensor, weights: Tensor) -> Tensor:
        if self.ours:
            if self.way == "plain":
                y = self.norm(x)
            else:
                y = self.norm.added(x, shortcut) if self.way == "added" else self.norm.rectified(x)
        else:
            y = self.norm(x) + shortcut if self.way == "added" else self.norm(x)
            y = y if self.way == "plain" else ops.relu(y)
        return (y * weights).sum()


def trained(network: After, tensors: list[Tensor], frozen: bool) -> Iterator[Floats]:
    """Loss, gradients and statistics after two steps, and the loss of an evaluation."""
    network.set_train(True)
    for name, value in (("gamma", tensors[3]), ("beta", tensors[4])):
        getattr(network.norm, name).set_data(value)
    if frozen:
        network.norm.use_batch_statistics = False
    step = mindspore.value_and_grad(network, (0, 1), network.trainable_params())
    step(*tensors[:3])
    loss, (by_inputs, by_parameters) = step(*tensors[:3])
    yield from (tensor.asnumpy() for tensor in (loss, *by_inputs, *by_parameters))
    yield from (network.norm.moving_mean.asnumpy(), network.norm.moving_variance.asnumpy())
    network.set_train(False)
    yield network(*tensors[:3]).asnumpy()


@pytest.mark.parametrize("frozen", [False, True], ids=["learning", "frozen"])
@pytest.mark.parametrize("way", ["plain", "rectified", "added"])
def test_fused_normalization_equals_mindspores(way: str, frozen: bool) -> None:
    generator = np.random.default_rng(0)
    shapes = [(3, 5, 7, 9)] * 3 + [(5,)] * 2
    tensors = [Tensor(generator.standard_normal(shape).astype(np.float32) + 0.5) for shape in shapes]
    ours, theirs = (trained(After(kind, way, 5), tensors, frozen) for kind in (BatchNorm, None))
    for found, expected in zip(ours, theirs, strict=True):
        near(found, expected)


def test_nan_passes_the_rectifier() -> None:
    x = np.ones((1, 2, 2, 2), np.float32)
    x[0, 1, 0, 0] = np.nan
    network = BatchNorm(2)
    network.set_train(True)
    y = network.rectified(Tensor(x)).asnumpy()
    assert np.isnan(y[0, 1]).all()
    assert np.isfinite(y[0, 0]).all()


def garbage(file: Path) -> None:
    file.write_bytes(b"\x7fELF and nothing else")


def of_other_sources(file: Path) -> None:
    built = library.FILE.read_bytes()
    file.write_bytes(built.replace(library.digest().encode(), b"0" * 64))


@pytest.mark.parametrize(
    ("make", "warning"),
    [(None, ""), (garbage, "operators.so: "), (of_other_sources, "operators.so is of other sources; run")],
)
def test_without_the_library_or_with_a_broken_one_mindspores_operators_run(
    make: Callable[[Path], None] | None,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    sources = list(library.sources())
    for source in sources:
        (tmp_path / source.name).write_bytes(source.read_bytes())
    file = tmp_path / "operators.so"
    if make is not None:
        make(file)
    monkeypatch.setattr(library, "FILE", file)
    library.usable.cache_clear()
    try:
        with caplog.at_level(logging.INFO, logger=library.__name__):
            assert Conv2d(1, 2, 3).form in ("native", "gemm")
            assert not BatchNorm(2).fused
        (said,) = caplog.records
        assert warning in said.getMessage()
        assert said.levelno == (logging.WARNING if warning else logging.INFO)
    finally:
        library.usable.cache_clear()
