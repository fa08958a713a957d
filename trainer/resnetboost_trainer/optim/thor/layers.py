"""Finds the layers that THOR preconditions and describes their weights as matrices.

Supported layers: MindSpore's Conv2d (any kernel, stride, padding, dilation, groups), Dense, Embedding and LayerNorm,
and this trainer's Conv2d. All other parameters (BN, biases, a script's own) keep their plain gradient.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from mindspore import Parameter, nn

from resnetboost_trainer.models.layers.conv import Conv2d
from resnetboost_trainer.optim.thor import blocks
from resnetboost_trainer.optim.thor.blocks import Blocks

Kind = Literal["conv", "dense", "embedding", "norm"]


class Window(msgspec.Struct, frozen=True):
    """A convolution's window: (height, width) of each, padding as (top, bottom, left, right)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int] | Literal["same"]

    def pads(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the padding for an input size; "same" puts the odd row or column at the end, like MindSpore."""
        if self.padding != "same":
            return self.padding
        top, bottom = self._same(height, 0)
        left, right = self._same(width, 1)
        return top, bottom, left, right

    def _same(self, size: int, axis: int) -> tuple[int, int]:
        extent = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        total = max((-(-size // self.stride[axis]) - 1) * self.stride[axis] + extent - size, 0)
        return total // 2, total - total // 2


class Form(msgspec.Struct, frozen=True):
    """Common shape of layers that are preconditioned together, as one stack of matrices.

    A weight is `groups` matrices of `outputs` rows and `channels` * `unit` columns; `unit` is the kernel's pixels.
    `factors` are split into the same blocks for each group: A (inputs) and G (outputs) for Conv2d and Dense, A (tokens,
    diagonal) and G for Embedding, and for LayerNorm the diagonal of the Fisher matrix of scale and shift.
    """

    kind: Kind
    groups: int
    outputs: int
    channels: int
    unit: int
    factors: tuple[Blocks, ...]

    @property
    def columns(self) -> int:
        """Columns of each matrix."""
        return self.channels * self.unit

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.groups * self.outputs * self.columns


class Layer(msgspec.Struct, frozen=True):
    """A preconditioned layer. `weights` has one entry, or two for LayerNorm (scale, shift)."""

    name: str
    cell: nn.Cell
    weights: tuple[Parameter, ...]
    form: Form
    window: Window | None = None


def find(network: nn.Cell, block_size: int, exclude: Sequence[str] = ()) -> tuple[list[Layer], dict[str, str]]:
    """Return the supported layers, grouped by form, and the reasons why others are left out, by name.

    Raises ValueError if a name in `exclude` is not a cell of the network.
    """
    names = {name for name, _ in network.cells_and_names()}
    for name in exclude:
        if name not in names:
            raise ValueError(f"THOR: exclude names {name!r}, which is no cell of the network")
    found: list[Layer] = []
    left_out: dict[str, str] = {}
    for name, cell in network.cells_and_names():
        reason = "" if cell is network or _below(name, exclude) else _unfit(cell)
        if reason is None:
            found.append(_layer(name, cell, block_size))
        elif reason:
            left_out[name] = reason
    for layer in _tied(found):
        found.remove(layer)
        left_out[layer.name] = "its weight belongs to several layers"
    order = {form: place for place, form in enumerate(dict.fromkeys(layer.form for layer in found))}
    return sorted(found, key=lambda layer: order[layer.form]), left_out


def ordered(layers: Sequence[Layer], parameters: Sequence[Parameter]) -> list[Parameter]:
    """Order the parameters with the layers' weights first, so that the gradients of a form are contiguous."""
    weights = [weight for layer in layers for weight in layer.weights]
    known = {id(weight) for weight in weights}
    return weights + [parameter for parameter in parameters if id(parameter) not in known]


def _below(name: str, exclude: Sequence[str]) -> bool:
    return any(name == excluded or name.startswith(f"{excluded}.") for excluded in exclude)


def _unfit(cell: nn.Cell) -> str | None:
    """Return why a cell is not preconditioned: None if it is, "" if the reason is not worth reporting."""
    weights = _weights(cell)
    if not weights or not all(weight.requires_grad for weight in weights):
        return ""
    if isinstance(cell, nn.Conv2d) and cell.data_format != "NCHW":
        return f"data_format is {cell.data_format}; only NCHW is known"
    if isinstance(cell, nn.Dense) and cell.activation_flag:
        return "its activation hides the output; use a Dense without one, followed by it"
    if isinstance(cell, nn.LayerNorm) and len(cell.normalized_shape) != 1:
        return f"normalized_shape is {tuple(cell.normalized_shape)}; only the last axis is known"
    return None


def _weights(cell: nn.Cell) -> tuple[Parameter, ...]:
    if isinstance(cell, Conv2d | nn.Conv2d | nn.Dense):
        return (cell.weight,)
    if isinstance(cell, nn.Embedding):
        return (cell.embedding_table,)
    return (cell.gamma, cell.beta) if isinstance(cell, nn.LayerNorm) else ()


def _layer(name: str, cell: nn.Cell, block_size: int) -> Layer:
    weights = _weights(cell)
    if isinstance(cell, Conv2d | nn.Conv2d):
        outputs, channels, height, width = weights[0].shape
        form = _kronecker("conv", cell.group, outputs // cell.group, channels, height * width, block_size)
        return Layer(name, cell, weights, form, _window(cell))
    if isinstance(cell, nn.Dense):
        outputs, inputs = weights[0].shape
        return Layer(name, cell, weights, _kronecker("dense", 1, outputs, inputs, 1, block_size))
    if isinstance(cell, nn.Embedding):
        tokens, width = weights[0].shape
        factors = (_diagonal(tokens), blocks.cut(width, 1, block_size))
        return Layer(name, cell, weights, Form("embedding", 1, tokens, width, 1, factors))
    (width,) = weights[0].shape
    return Layer(name, cell, weights, Form("norm", 1, 2, width, 1, (_diagonal(2 * width),)))


def _kronecker(kind: Kind, groups: int, outputs: int, channels: int, unit: int, block_size: int) -> Form:
    factors = (blocks.cut(channels, unit, block_size), blocks.cut(outputs, 1, block_size))
    return Form(kind, groups, outputs, channels, unit, factors)


def _diagonal(dimension: int) -> Blocks:
    return Blocks(dimension, dimension, 1)


def _window(cell: nn.Cell) -> Window:
    mode = "pad" if isinstance(cell, Conv2d) else cell.pad_mode
    padding: Any = cell.padding if isinstance(cell.padding, tuple) else (cell.padding,) * 4
    if mode == "valid":
        padding = (0, 0, 0, 0)
    return Window(
        _pair(cell.kernel_size), _pair(cell.stride), _pair(cell.dilation), "same" if mode == "same" else padding
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _tied(layers: Sequence[Layer]) -> Iterator[Layer]:
    uses = collections.Counter(id(weight) for layer in layers for weight in layer.weights)
    return iter([layer for layer in layers if any(uses[id(weight)] > 1 for weight in layer.weights)])
