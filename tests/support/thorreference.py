"""THOR's captures of a network from its own graphs, and the expected factors and directions in float64.

The reference shares nothing with the trainer: a convolution's patches come from MindSpore's own convolution with
one-hot kernels, and with d a sample's own gradient, the definitions are A = mean a a^T, G = mean d d^T over samples and
positions, F ~ T (A kron G).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from mindspore import Tensor, nn
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine.gradient import Gradient
from resnetboost_trainer.optim.thor.blocks import Blocks
from resnetboost_trainer.optim.thor.host import Captured
from resnetboost_trainer.optim.thor.kfac import KFACPreconditioner
from resnetboost_trainer.optim.thor.layers import Form, Layer
from resnetboost_trainer.optim.thor.report import CurvatureUpdate

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
T = TypeVar("T")


class Pass(NamedTuple):
    """Results of a forward and backward pass: the flat gradient, and each layer's captures by name."""

    flat: Tensor
    tensors: tuple[Tensor, ...]
    captured: dict[str, Captured]
    samples: int
    loss_scale: float

    def gradient(self, name: str) -> Floats:
        """That layer's gradient in the shape of its form, (groups, outputs, columns), from the flat one."""
        start = 0
        for captured in self.captured.values():
            form = captured.layer.form
            if captured.layer.name == name:
                part: Floats = self.flat.asnumpy()[start : start + form.size]
                return part.reshape(form.groups, form.outputs, form.columns)
            start += form.size
        raise KeyError(name)


class Subject:
    """A network and its preconditioner, built as the trainer does."""

    def __init__(
        self,
        network: nn.Cell,
        loss: Callable[..., Any],
        block_size: int = 8192,
        split: str = "Pi",
        loss_scale: float = 1.0,
    ) -> None:
        settings = {
            "frequency": 1,
            "blockSize": block_size,
            "damping": {"initial": 1, "decay": 1, "decayEpochs": 1, "split": split},
            "traceRule": {"updateAbove": 0, "stopBelow": 0, "smoothing": 0},
        }
        thor = msgspec.convert(settings, config.Thor)
        self.network = network
        self.curvature = KFACPreconditioner(network, network.trainable_params(), thor, Communicator(0, 1))
        self.layers: dict[str, Layer] = {layer.name: layer for layer in self.curvature.layers}
        parameters, probes = self.curvature.parameters, self.curvature.capture.probes
        self.loss_scale = loss_scale
        self.graph = Gradient(network, loss, parameters, loss_scale, probes)

    def run(self, x: NDArray[Any], y: NDArray[Any]) -> Pass:
        """Captures of one pass."""
        with self.curvature.capture.attached():
            self.graph.set_train(True)
            flat, tensors = self.graph(Tensor(x), Tensor(y), Tensor(np.zeros(1, np.float32)))
        both = zip(self.layers.items(), tensors[::2], tensors[1::2], strict=True)
        captured = {
            name: Captured(layer, a.asnumpy(), d.asnumpy(), len(x), self.loss_scale) for (name, layer), a, d in both
        }
        return Pass(flat, tensors, captured, len(x), self.loss_scale)

    def update(self, captured: Pass, damping: float) -> CurvatureUpdate:
        return self.curvature.update(captured.tensors, captured.flat, captured.samples, captured.loss_scale, damping)

    def direction(self, flat: Tensor) -> dict[str, Floats]:
        """The gradient as preconditioned by THOR's graph, by layer, in the shape of its form."""
        preconditioned = self.curvature.preconditioner(flat[: self.count]).asnumpy()
        result, start = {}, 0
        for name, layer in self.layers.items():
            form = layer.form
            part = preconditioned[start : start + form.size]
            result[name] = part.reshape(form.groups, form.outputs, form.columns)
            start += form.size
        return result

    @property
    def count(self) -> int:
        return sum(math.prod(parameter.shape) for parameter in self.curvature.parameters)


class Reference(NamedTuple):
    """Factors of the left and right side of a weight's matrices, (groups, n, n) each, and T."""

    left: Array
    right: Array
    positions: int

    def cut(self, form: Form) -> "Reference":
        """The factors with zeros outside the form's diagonal blocks."""
        left, right = _sides(form, form.factors)
        return self._replace(left=self.left * _mask(left), right=self.right * _mask(right))

    def fisher(self) -> Array:
        """T (left kron right) by group, for a matrix's weights row by row."""
        both = zip(self.left, self.right, strict=True)
        return np.stack([self.positions * np.kron(left, right) for left, right in both])

    def damped(self, damping: float, symmetric: bool) -> "Reference":
        """The factors with the damping split by their mean eigenvalues (Martens & Grosse 2015), or in equal parts."""
        mean_left, mean_right = (np.trace(side, axis1=1, axis2=2).mean() / side.shape[1] for side in self[:2])
        ratio = 1 if symmetric else np.sqrt(mean_left / mean_right)
        share = np.sqrt(damping / self.positions)
        return self._replace(
            left=self.left + ratio * share * np.eye(self.left.shape[1]),
            right=self.right + share / ratio * np.eye(self.right.shape[1]),
        )

    def solve(self, gradients: NDArray[Any]) -> Array:
        """Solve fisher() x = gradient for every group: (groups, rows, columns) -> the same."""
        flat = gradients.astype(np.float64).reshape(len(gradients), -1, 1)
        return np.linalg.solve(self.fisher(), flat).reshape(gradients.shape)


def reference(captured: Captured) -> Reference:
    """Factors of Conv2d, Dense and Embedding: of the outputs and inputs (Embedding: of tokens and outputs)."""
    a, d = inputs(captured), sample_outputs(captured)
    left, right = _covariance(d), _covariance(a)
    if captured.layer.form.kind == "embedding":
        left, right = right, left
    return Reference(left, right, a.shape[2])


def sample_gradients(captured: Captured) -> Array:
    """Gradient of each sample's own loss with respect to the weights, (n, groups, outputs, columns)."""
    a, d = inputs(captured), sample_outputs(captured)
    if captured.layer.form.kind == "embedding":
        a, d = d, a
    gradients: Array = np.einsum("ngto,ngtc->ngoc", d, a)
    return gradients


def sample_outputs(captured: Captured) -> Array:
    """Gradients of each sample's own loss with respect to the layer's outputs, (n, groups, positions, outputs)."""
    d = captured.gradient.astype(np.float64) * captured.samples / captured.loss_scale
    if captured.layer.form.kind == "conv":
        d = d.transpose(0, 2, 3, 1)
    return _by_group(d.reshape(len(d), -1, d.shape[-1]), captured.layer.form.groups)


def inputs(captured: Captured) -> Array:
    """The vectors that each weight matrix multiplies, (n, groups, positions, columns)."""
    kind, x = captured.layer.form.kind, captured.input
    if kind == "conv":
        return patches(captured.layer.cell, x, captured.layer.form.groups)
    if kind == "embedding":
        tokens: Array = np.eye(captured.layer.form.outputs)[x.reshape(len(x), 1, -1)]
        return tokens
    return np.asarray(x, np.float64).reshape(len(x), 1, -1, x.shape[-1])


def patches(cell: nn.Cell, x: NDArray[Any], groups: int) -> Array:
    """The patches a convolution multiplies by its weights, (n, groups, positions, columns), from one-hot kernels."""
    channels, kernel = x.shape[1] // groups, cell.weight.shape[2:]
    columns = channels * math.prod(kernel)
    copier = nn.Conv2d(
        channels,
        columns,
        kernel,
        stride=cell.stride,
        dilation=cell.dilation,
        padding=cell.padding,
        pad_mode=getattr(cell, "pad_mode", "pad"),
        weight_init=Tensor(np.eye(columns, dtype=np.float32).reshape(columns, channels, *kernel)),
    )
    copies = [copier(Tensor(part)).asnumpy() for part in np.split(x, groups, axis=1)]
    rows = np.stack([copy.reshape(len(x), columns, -1).swapaxes(1, 2) for copy in copies], axis=1)
    return np.asarray(rows, np.float64)


def matrices(captured: Captured, factors: Sequence[Floats]) -> tuple[Array, Array]:
    """Left and right factor (groups, n, n) from the trainer's blocks."""
    form = captured.layer.form
    both = zip(_sides(form, factors), _sides(form, form.factors), strict=True)
    left, right = (_diagonal(blocks, cut, form.groups) for blocks, cut in both)
    return left, right


def _sides(form: Form, of_factors: Sequence[T]) -> tuple[T, T]:
    """Factors in order (left, right): A of Conv2d and Dense is on the right, that of Embedding on the left."""
    a, g = of_factors
    return (a, g) if form.kind == "embedding" else (g, a)


def _diagonal(blocks: Floats, cut: Blocks, groups: int) -> Array:
    """The trainer's blocks as one block-diagonal matrix (groups, dimension, dimension)."""
    matrices = np.zeros((groups, cut.padded, cut.padded))
    for k, block in enumerate(blocks):
        group, place = divmod(k, cut.count)
        inside = slice(place * cut.size, (place + 1) * cut.size)
        matrices[group, inside, inside] = block
    assert not matrices[:, cut.dimension :].any()
    assert not matrices[:, :, cut.dimension :].any()
    return matrices[:, : cut.dimension, : cut.dimension]


def close(actual: NDArray[Any], expected: NDArray[Any], tolerance: float) -> bool:
    """Whether the largest difference is within `tolerance` times the largest entry."""
    assert actual.shape == expected.shape
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


def _covariance(rows: Array) -> Array:
    """Mean of x x^T over samples and positions."""
    mean: Array = np.einsum("ngti,ngtj->gij", rows, rows) / (rows.shape[0] * rows.shape[2])
    return mean


def _by_group(rows: Array, groups: int) -> Array:
    return rows.reshape(*rows.shape[:2], groups, -1).transpose(0, 2, 1, 3)


def _mask(cut: Blocks) -> Array:
    place = np.arange(cut.dimension) // cut.size
    return np.asarray(place[:, None] == place, np.float64)
