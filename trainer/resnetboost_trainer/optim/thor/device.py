"""Computes a layer's traces and Kronecker factors on the device, with MindSpore operators that every device has.

Same functions and values as `host`, for a `Captured` of Tensors; only results are copied to the host. Sums and products
are in float32 for any captured type. Layers of the same form and shapes share one graph.
"""

import functools
from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.optim.thor.blocks import Blocks
from resnetboost_trainer.optim.thor.host import Captured
from resnetboost_trainer.optim.thor.layers import Form, Window

Floats = NDArray[np.float32]


def traces(captured: Captured) -> tuple[float, float]:
    """Return (tr A, tr G), or (tr F, 1) for LayerNorm, without computing the factors."""
    return all_traces([captured])[0]


def all_traces(everything: Sequence[Captured]) -> list[tuple[float, float]]:
    """Return `traces` of each layer; the host waits for the device once."""
    sums = ops.stack([_cells(one)[0](one.input, one.gradient) for one in everything]).asnumpy()
    return [_scaled(one, a, g) for one, (a, g) in zip(everything, sums.tolist(), strict=True)]


def factors(captured: Captured) -> list[Floats]:
    """Return a layer's factors in the blocks of its form, each (groups * count, size, size)."""
    sums = [each.asnumpy() for each in _cells(captured)[1](captured.input, captured.gradient)]
    if captured.layer.form.kind == "norm":
        return [sums[0] * np.float32(_norm_factor(captured))]
    return [sums[0] * np.float32(1 / captured.rows), sums[1] * np.float32(captured.gradient_factor)]


def all_factors(everything: Sequence[Captured]) -> list[list[Floats]]:
    """Return `factors` of each layer."""
    return [factors(captured) for captured in everything]


def _scaled(captured: Captured, a: float, g: float) -> tuple[float, float]:
    """Compute traces from sums of squares."""
    if captured.layer.form.kind == "norm":
        return a * _norm_factor(captured), 1.0
    return a / captured.rows, g * captured.gradient_factor


def _norm_factor(captured: Captured) -> float:
    """Return the factor from the sum of squared gradients by sample to the Fisher diagonal."""
    return captured.samples / captured.loss_scale**2


def _cells(captured: Captured) -> tuple[nn.Cell, nn.Cell]:
    """Return the graphs for sums of squares and for sums of products, cached by form and shapes."""
    form, cell = captured.layer.form, captured.layer.cell
    if form.kind == "conv":
        assert captured.layer.window is not None
        return _convolution(form, captured.layer.window, *captured.input.shape[2:])
    if form.kind == "norm":
        return _norm(form, float(cell.epsilon), captured.samples)
    return _rows(form)


@functools.cache
def _convolution(form: Form, window: Window, height: int, width: int) -> tuple[nn.Cell, nn.Cell]:
    patches = _Patches(window, height, width)
    return _PatchSquares(patches), _PatchProducts(form, patches)


@functools.cache
def _rows(form: Form) -> tuple[nn.Cell, nn.Cell]:
    if form.kind == "embedding":
        return _TokenSquares(), _TokenProducts(form)
    return _RowSquares(), _RowProducts(form)


@functools.cache
def _norm(form: Form, epsilon: float, samples: int) -> tuple[nn.Cell, nn.Cell]:
    diagonal = _NormDiagonal(form.columns, epsilon, samples)
    return _NormTrace(diagonal), diagonal


class _Patches(nn.Cell):
    """im2col of images: (N, C, height, width) -> (C kh kw, N H' W'), rows ordered as a weight's columns."""

    def __init__(self, window: Window, height: int, width: int) -> None:
        super().__init__()
        top, bottom, left, right = window.pads(height, width)
        self.pads = (left, right, top, bottom)
        self.kernel, self.dilation, self.stride = window.kernel, window.dilation, window.stride

    def construct(self, images: Tensor) -> Tensor:
        if sum(self.pads) > 0:
            images = ops.pad(images, self.pads)
        # On a CPU four times as fast as one strided slice per pixel of the kernel, from 3x3 at 28x28 to 7x7.
        patches = ops.unfold(images, self.kernel, self.dilation, 0, self.stride)
        return patches.transpose(1, 0, 2).reshape(patches.shape[1], -1)


class _Products(nn.Cell):
    """Diagonal blocks of M M^T for `groups` matrices: (groups * dimension, rows) -> (groups * count, size, size)."""

    def __init__(self, groups: int, cut: Blocks) -> None:
        super().__init__()
        self.groups, self.dimension, self.padded = groups, cut.dimension, cut.padded
        self.shape = (groups * cut.count, cut.size, -1)
        self.times_transposed = ops.BatchMatMul(transpose_b=True)

    def construct(self, matrix: Tensor) -> Tensor:
        if self.padded > self.dimension:
            rows = matrix.shape[1]
            zeros = ops.zeros((self.groups, self.padded - self.dimension, rows), matrix.dtype)
            matrix = ops.concat((matrix.reshape(self.groups, self.dimension, rows), zeros), 1)
        parts = matrix.reshape(self.shape)
        return self.times_transposed(parts, parts)


class _PatchSquares(nn.Cell):
    """Sums of squares of all patches and all output gradients: (2,). Only one plane is converted to patches."""

    def __init__(self, patches: _Patches) -> None:
        super().__init__()
        self.patches = patches

    def construct(self, a: Tensor, d: Tensor) -> Tensor:
        plane = ops.square(_single(a)).sum((0, 1), keepdims=True)
        return ops.stack((self.patches(plane).sum(), _squares(d)))


class _PatchProducts(nn.Cell):
    """Sums of a a^T and of d d^T."""

    def __init__(self, form: Form, patches: _Patches) -> None:
        super().__init__()
        self.patches = patches
        self.of_inputs, self.of_outputs = (_Products(form.groups, cut) for cut in form.factors)

    def construct(self, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.patches(_single(a))
        outputs = _single(d).transpose(1, 0, 2, 3).reshape(d.shape[1], -1)
        return self.of_inputs(inputs), self.of_outputs(outputs)


class _RowSquares(nn.Cell):
    """Sums of squares of the inputs and output gradients of a dense layer: (2,)."""

    def construct(self, a: Tensor, d: Tensor) -> Tensor:
        return ops.stack((_squares(a), _squares(d)))


class _RowProducts(nn.Cell):
    """Sums of a a^T and of d d^T over the rows of a dense layer."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.of_inputs, self.of_outputs = (_Products(1, cut) for cut in form.factors)

    def construct(self, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        return self.of_inputs(_columns(a)), self.of_outputs(_columns(d))


class _TokenSquares(nn.Cell):
    """Number of tokens, and the sum of squares of their gradients: (2,)."""

    def construct(self, a: Tensor, d: Tensor) -> Tensor:
        return ops.stack((ops.ones(a.shape, mindspore.float32).sum(), _squares(d)))


class _TokenProducts(nn.Cell):
    """Number of occurrences of each token, and the sum of d d^T."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.tokens = form.outputs
        self.of_outputs = _Products(1, form.factors[1])

    def construct(self, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        tokens = a.reshape(-1).astype(mindspore.int32)
        counts = ops.unsorted_segment_sum(ops.ones(tokens.shape, mindspore.float32), tokens, self.tokens)
        return counts.reshape(-1, 1, 1), self.of_outputs(_columns(d))


class _NormDiagonal(nn.Cell):
    """Squared gradients of LayerNorm's scale and shift, summed over samples (runs of rows): (2 width, 1, 1)."""

    def __init__(self, width: int, epsilon: float, samples: int) -> None:
        super().__init__()
        self.width, self.epsilon, self.samples = width, epsilon, samples

    def construct(self, a: Tensor, d: Tensor) -> tuple[Tensor]:
        x, d = _single(a).reshape(-1, self.width), _single(d).reshape(-1, self.width)
        centred = x - x.mean(1, keep_dims=True)
        normal = centred * ops.rsqrt(ops.square(centred).mean(1, keep_dims=True) + self.epsilon)
        both = ops.concat((d * normal, d), 1)
        by_sample = both.reshape(self.samples, -1, 2 * self.width).sum(1)
        return (ops.square(by_sample).sum(0).reshape(-1, 1, 1),)


class _NormTrace(nn.Cell):
    """The sum of that diagonal, and an unused number for the shape of the other graphs: (2,)."""

    def __init__(self, diagonal: _NormDiagonal) -> None:
        super().__init__()
        self.diagonal = diagonal

    def construct(self, a: Tensor, d: Tensor) -> Tensor:
        (diagonal,) = self.diagonal(a, d)
        return ops.stack((diagonal.sum(), diagonal.sum()))


def _single(tensor: Tensor) -> Tensor:
    return tensor.astype(mindspore.float32)


def _squares(tensor: Tensor) -> Tensor:
    return ops.square(_single(tensor)).sum()


def _columns(tensor: Tensor) -> Tensor:
    """(..., width) -> (width, rows)."""
    return _single(tensor).reshape(-1, tensor.shape[-1]).transpose(1, 0)
