"""Computes a layer's traces and Kronecker factors from its captured tensors in NumPy, for CPUs.

On a CPU this takes less than half the time of MindSpore's operators (BLAS exploits that A A^T is symmetric, and each
operator costs a tenth of a millisecond to launch). `device` computes the same values on other devices.

With N samples of T positions, patches a (of C kh kw numbers), loss scale S and the captured gradient `dout` of the
scaled mean loss (algorithm and constants: Grosse & Martens 2016, KFC):
    A = 1/(N T) sum a a^T        G = N/(S^2 T) sum dout dout^T        F ~ T (A kron G)
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import mindspore
import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from resnetboost_trainer.optim.thor.blocks import Blocks
from resnetboost_trainer.optim.thor.layers import Layer, Window

Floats = NDArray[np.float32]

# Largest difference between the gradient from a layer's captured tensors and that of autodiff, relative to its norm,
# for the tensors to explain it: half precision stays below it, a second use of the layer does not.
EXPLAINED_WITHIN = 0.05


class Captured(msgspec.Struct, frozen=True):
    """A layer's captured input and output gradient for `samples` samples, with the loss times `loss_scale`.

    Both are NumPy arrays in this module and Tensors in `device`.
    """

    layer: Layer
    input: Any
    gradient: Any
    samples: int
    loss_scale: float

    @property
    def rows(self) -> int:
        """Samples times positions."""
        if self.layer.form.kind == "conv":
            return int(self.gradient.size // self.gradient.shape[1])
        return int(self.input.size // (1 if self.layer.form.kind == "embedding" else self.input.shape[-1]))

    @property
    def positions(self) -> int:
        """T, the number of uses of the weight per sample."""
        return self.rows // self.samples

    @property
    def uses(self) -> int:
        """T in F ~ T (A kron G); 1 for LayerNorm, whose Fisher diagonal is complete."""
        return 1 if self.layer.form.kind == "norm" else self.positions

    @property
    def gradient_factor(self) -> float:
        """Factor from the sum of dout dout^T to G."""
        return self.samples / (self.loss_scale**2 * self.positions)


def all_traces(everything: Sequence[Captured]) -> list[tuple[float, float]]:
    """Return `traces` of each layer."""
    return [traces(captured) for captured in everything]


@np.errstate(over="ignore", invalid="ignore")  # the trace rule leaves out what is not finite
def traces(captured: Captured) -> tuple[float, float]:
    """Return (tr A, tr G), or (tr F, 1) for LayerNorm, without computing the factors."""
    kind = captured.layer.form.kind
    if kind == "norm":
        return float(_norm_diagonal(captured).sum()), 1.0
    trace_g = _squares(captured.gradient) * captured.gradient_factor
    if kind == "embedding":
        return 1.0, trace_g
    if kind == "dense":
        return _squares(captured.input) / captured.rows, trace_g
    weights = uses(captured)
    weighted = np.square(_single(captured.input)).reshape(-1, weights.size) @ weights
    return float(weighted.sum(dtype=np.float64)) / captured.rows, trace_g


def uses(captured: Captured) -> Floats:
    """Return the number of a convolution's patches that contain each pixel of its input, (height * width,)."""
    window = captured.layer.window
    assert window is not None
    return _uses(window, *captured.input.shape[2:])


def all_factors(everything: Sequence[Captured]) -> list[list[Floats]]:
    """Return `factors` of each layer."""
    return [factors(captured) for captured in everything]


@np.errstate(over="ignore", invalid="ignore")  # what is not finite has no inverse
def factors(captured: Captured) -> list[Floats]:
    """Return a layer's factors in the blocks of its form, each (groups * count, size, size)."""
    form = captured.layer.form
    if form.kind == "norm":
        return [_norm_diagonal(captured).reshape(-1, 1, 1)]
    outputs = _output_rows(captured)
    cut = form.factors[1]
    parts = [covariance(part, cut, captured.gradient_factor) for part in _groups(outputs, form.groups)]
    return [_inputs(captured), np.concatenate(parts)]


def covariance(matrix: NDArray[np.generic], cut: Blocks, factor: float) -> Floats:
    """Return the diagonal blocks of factor * M M^T for M (dimension, rows): (count, size, size), zero-padded."""
    result = np.zeros((cut.count, cut.size, cut.size), np.float32)
    for k in range(cut.count):
        part = _single(matrix[k * cut.size : (k + 1) * cut.size])
        result[k, : len(part), : len(part)] = part @ part.T
    result *= np.float32(factor)
    return result


def brought(captured: Captured) -> Captured:
    """Convert captured Tensors to NumPy arrays; bfloat16, which NumPy lacks, becomes float32."""
    tensors = captured.input, captured.gradient
    arrays = [(t.astype(mindspore.float32) if t.dtype == mindspore.bfloat16 else t).asnumpy() for t in tensors]
    return msgspec.structs.replace(captured, input=arrays[0], gradient=arrays[1])


def explains(captured: Captured, gradient: Floats) -> bool:
    """Check that input and output gradient yield the layer's gradient (groups, outputs, columns) of the local batch.

    They do not if the network uses a layer twice or never, uses its weight elsewhere, or not for every sample.
    """
    if captured.gradient.ndim == 0 or captured.rows % captured.samples:
        return False
    form = captured.layer.form
    if form.kind == "norm":
        expected = _norm_gradient(captured).sum(0)
    elif form.kind == "embedding":
        expected = np.zeros((form.outputs, form.columns), np.float32)
        np.add.at(expected, _tokens(captured), _single(captured.gradient).reshape(-1, form.columns))
    else:
        columns = _groups(_input_rows(captured), form.groups)
        outputs = _groups(_output_rows(captured), form.groups)
        expected = np.stack([_single(d) @ _single(a).T for d, a in zip(outputs, columns, strict=True)])
    difference = expected.reshape(-1) / np.float32(captured.loss_scale) - gradient.reshape(-1)
    return bool(np.linalg.norm(difference) <= EXPLAINED_WITHIN * np.linalg.norm(gradient))


def _inputs(captured: Captured) -> Floats:
    """Return factor A."""
    form = captured.layer.form
    cut = form.factors[0]
    if form.kind == "embedding":
        counts = np.bincount(_tokens(captured), minlength=form.outputs)
        return (counts / captured.rows).astype(np.float32).reshape(-1, 1, 1)
    if form.kind == "dense":
        return covariance(_input_rows(captured), cut, 1 / captured.rows)
    return np.concatenate([_patch_covariance(part, captured) for part in _groups(_padded(captured), form.groups)])


def _patch_covariance(planes: Floats, captured: Captured) -> Floats:
    """Return the patches' covariance for planes (channels, height, width, N), in blocks that stay in the cache."""
    form = captured.layer.form
    cut = form.factors[0]
    result = np.zeros((cut.count, cut.size, cut.size), np.float32)
    for k in range(cut.count):
        first, last = k * cut.size, min((k + 1) * cut.size, cut.dimension)
        channel = first // form.unit
        patches = _patches(planes[channel : -(-last // form.unit)], captured)
        part = patches[first - channel * form.unit : last - channel * form.unit]
        result[k, : len(part), : len(part)] = part @ part.T
    result *= np.float32(1 / captured.rows)
    return result


def _padded(captured: Captured) -> Floats:
    """Convert images (N, C, H, W) to zero-padded planes (C, H + pads, W + pads, N).

    With the samples last, patches consist of long runs; copying them in NCHW order takes five times as long.
    """
    images = captured.input
    window = captured.layer.window
    assert window is not None
    samples, channels, height, width = images.shape
    top, bottom, left, right = window.pads(height, width)
    planes = np.zeros((channels, height + top + bottom, width + left + right, samples), np.float32)
    planes[:, top : top + height, left : left + width] = images.transpose(1, 2, 3, 0)
    return planes


def _patches(planes: Floats, captured: Captured) -> Floats:
    """Return im2col of planes: (C, H, W, N) -> (C kh kw, H' W' N), rows in the order of a weight's columns."""
    window = captured.layer.window
    assert window is not None
    channels, samples = planes.shape[0], planes.shape[3]
    rows, columns = captured.gradient.shape[2:]
    of_channel, of_row, of_column, of_sample = planes.strides
    (dilated_row, dilated_column), (row, column) = window.dilation, window.stride
    view = as_strided(
        planes,
        (channels, *window.kernel, rows, columns, samples),
        (of_channel, dilated_row * of_row, dilated_column * of_column, row * of_row, column * of_column, of_sample),
        writeable=False,
    )
    return view.reshape(channels * math.prod(window.kernel), -1)


def _tokens(captured: Captured) -> NDArray[np.int64]:
    tokens: NDArray[np.int64] = captured.input.reshape(-1).astype(np.int64)
    return tokens


def _input_rows(captured: Captured) -> Floats:
    """Return all inputs as (groups * columns, rows)."""
    if captured.layer.form.kind == "conv":
        return _patches(_padded(captured), captured)
    return _single(captured.input).reshape(captured.rows, -1).T


def _output_rows(captured: Captured) -> Floats:
    """Return all output gradients (groups * outputs, rows), in the order of `_input_rows`; Embedding: (width, rows)."""
    gradient = _single(captured.gradient)
    if captured.layer.form.kind == "conv":
        return gradient.transpose(1, 2, 3, 0).reshape(gradient.shape[1], -1)
    return gradient.reshape(captured.rows, -1).T


def _norm_gradient(captured: Captured) -> Floats:
    """Return scale and shift's gradient per sample, (N, 2 width); assumes that a sample's positions are adjacent."""
    width = captured.layer.form.columns
    x = _single(captured.input).reshape(-1, width)
    d = _single(captured.gradient).reshape(-1, width)
    deviation = np.sqrt(x.var(1, keepdims=True) + np.float32(captured.layer.cell.epsilon))
    both = np.concatenate([d * ((x - x.mean(1, keepdims=True)) / deviation), d], axis=1)
    per_sample: Floats = both.reshape(captured.samples, -1, 2 * width).sum(1)
    return per_sample


def _norm_diagonal(captured: Captured) -> Floats:
    """Return the samples' mean squared gradient, the exact Fisher diagonal without a Kronecker approximation."""
    scale = captured.samples / captured.loss_scale
    diagonal: Floats = np.square(_norm_gradient(captured) * np.float32(scale)).mean(0)
    return diagonal


@functools.cache
def _uses(window: Window, height: int, width: int) -> Floats:
    """Return the number of patches that contain each pixel, (height * width,)."""
    top, bottom, left, right = window.pads(height, width)
    rows = _uses_along(height, (top, bottom), window.kernel[0], window.stride[0], window.dilation[0])
    columns = _uses_along(width, (left, right), window.kernel[1], window.stride[1], window.dilation[1])
    return np.outer(rows, columns).reshape(-1)


def _uses_along(size: int, pads: tuple[int, int], kernel: int, stride: int, dilation: int) -> Floats:
    extent = (kernel - 1) * dilation + 1
    starts = np.arange(0, size + sum(pads) - extent + 1, stride)
    places = (starts[:, None] + dilation * np.arange(kernel)).reshape(-1) - pads[0]
    return np.bincount(places[(places >= 0) & (places < size)], minlength=size).astype(np.float32)


def _groups(rows: Floats, groups: int) -> list[Floats]:
    return np.split(rows, groups) if groups > 1 else [rows]


def _single(array: NDArray[np.generic]) -> Floats:
    """Cast to float32, without a copy if it is float32 already: sums in half precision would overflow."""
    return array.astype(np.float32, copy=False)


def _squares(array: NDArray[np.generic]) -> float:
    flat = _single(array).reshape(-1)
    return float(flat @ flat)
