"""Preconditions the gradient: multiplies it by the inverted Kronecker factors, as a graph.

For a Conv2d or Dense weight W (outputs, columns): U = G^-1 dW A^-1, which is (A kron G)^-1 vec(dW) column by column
(Martens & Grosse 2015, §3); for Embedding A^-1 dW G^-1; for LayerNorm element by element. Layers of one form are one
stack of matrices, so that a ResNet-20 needs seven products instead of twenty. Inverses are the identity until their
first update: the layer keeps its plain gradient. On CPUs all of it is one C++ operator where there is one
(kernels/precondition.cpp), if all layers are Conv2d and Dense.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore
import msgspec
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from numpy.typing import NDArray

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.models.assign import Part
from resnetboost_trainer.optim.clip import Clipped
from resnetboost_trainer.optim.thor.blocks import Blocks
from resnetboost_trainer.optim.thor.layers import Layer

Floats = NDArray[np.float32]


class Preconditioner(nn.Cell):
    """Flat gradient -> flat direction, both in the order of `layers.ordered`; other parameters are unchanged."""

    def __init__(self, layers: Sequence[Layer], parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        runs = [list(run) for _, run in itertools.groupby(layers, key=lambda layer: layer.form)]
        self.stacks = nn.CellList([_STACKS[run[0].form.kind](run) for run in runs], auto_prefix=False)
        preconditioned = [run[0].form.size * len(run) for run in runs]
        self.count = sum(math.prod(parameter.shape) for parameter in parameters)
        rest = self.count - sum(preconditioned)
        self.sizes = [*preconditioned, rest] if rest else preconditioned
        self.rest = rest > 0
        stacks = zip(self.stacks, runs, strict=True)
        self.places = [(stack, member) for stack, run in stacks for member in range(len(run))]
        operators = library.usable() if mindspore.get_context("device_target") == "CPU" else None
        self.fused = False
        if operators is not None and all(isinstance(stack, _Kronecker) for stack in self.stacks):
            self.fused = True
            self.inverses = ParameterTuple(self.state())
            self.forms = Tensor([stack.numbers() for stack in self.stacks], mindspore.int32)
            self.operator = primitive(operators, "thor_direction", _first, _first)

    def construct(self, gradients: Tensor) -> Tensor:
        """Precondition a flat gradient (parameters,), and what follows it: the direction, with or without the rest."""
        if self.fused:
            return self.operator(gradients, self.forms, *self.inverses)
        parts = ops.split(gradients[: self.count], self.sizes)
        directions = []
        for k in range(len(self.stacks)):
            directions.append(self.stacks[k](parts[k]).reshape(-1))
        if self.rest:
            directions.append(parts[-1])
        return ops.concat(directions)

    def parts(self, inverses: Mapping[int, Sequence[Floats]], first: int) -> list[Part]:
        """Return what to write into `state()` for inverses by the layer's index, each (groups * count, size, size).

        `first` is the index of the first parameter of `state()`.
        """
        begins = {}
        for stack in self.stacks:
            begins[id(stack)] = first
            first += len(stack.inverses)
        return [
            Part(begins[id(stack)] + factor, member * inverse.size, inverse)
            for k, (stack, member) in enumerate(self.places)
            for factor, inverse in enumerate(inverses.get(k, ()))
        ]

    def state(self) -> list[Parameter]:
        """Return the state to save in checkpoints: every stack's inverses."""
        return [inverse for stack in self.stacks for inverse in stack.inverses]


class _Stack(nn.Cell):
    """The inverses of layers of one form, each factor's as (layers * groups * blocks, size, size)."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__(auto_prefix=False)
        self.form, self.count = layers[0].form, len(layers)
        self.matrices = self.count * self.form.groups
        name = f"thor.inverse.{layers[0].name}"
        self.inverses = ParameterTuple(
            [
                Parameter(_identities(self.matrices, cut), name=f"{name}.{factor}", requires_grad=False)
                for factor, cut in enumerate(self.form.factors)
            ]
        )
        self.multiply = ops.BatchMatMul()

    def from_left(self, x: Tensor, inverse: Tensor, cut: Blocks) -> Tensor:
        """Return block-diagonal inverse times x; x and the result are (n, dimension, columns)."""
        n, dimension, columns = x.shape
        if cut.padded > dimension:
            x = ops.concat((x, ops.zeros((n, cut.padded - dimension, columns), x.dtype)), 1)
        y = self.multiply(inverse, x.reshape(n * cut.count, cut.size, columns)).reshape(n, cut.padded, columns)
        return y[:, :dimension] if cut.padded > dimension else y

    def from_right(self, x: Tensor, inverse: Tensor, cut: Blocks) -> Tensor:
        """Return x times block-diagonal inverse; x and the result are (n, rows, dimension)."""
        n, rows, dimension = x.shape
        if cut.padded > dimension:
            x = ops.concat((x, ops.zeros((n, rows, cut.padded - dimension), x.dtype)), 2)
        if cut.count > 1:
            x = x.reshape(n, rows, cut.count, cut.size).transpose(0, 2, 1, 3).reshape(n * cut.count, rows, cut.size)
        y = self.multiply(x, inverse)
        if cut.count > 1:
            y = y.reshape(n, cut.count, rows, cut.size).transpose(0, 2, 1, 3).reshape(n, rows, cut.padded)
        return y[:, :, :dimension] if cut.padded > dimension else y


class _Kronecker(_Stack):
    """Conv2d and Dense: G^-1 dW A^-1."""

    def numbers(self) -> tuple[int, ...]:
        """Return the form as the C++ operator has it."""
        by_inputs, by_outputs = self.form.factors
        return (self.matrices, *msgspec.structs.astuple(by_outputs), *msgspec.structs.astuple(by_inputs))

    def construct(self, gradients: Tensor) -> Tensor:
        form = self.form
        x = gradients.reshape(self.matrices, form.outputs, form.columns)
        return self.from_right(self.from_left(x, self.inverses[1], form.factors[1]), self.inverses[0], form.factors[0])


class _Embedding(_Stack):
    """Embedding: A^-1 dW G^-1 with a diagonal A."""

    def construct(self, gradients: Tensor) -> Tensor:
        form = self.form
        x = gradients.reshape(self.matrices, form.outputs, form.columns)
        return self.from_right(x * self.inverses[0].reshape(-1, form.outputs, 1), self.inverses[1], form.factors[1])


class _Norm(_Stack):
    """LayerNorm: every scale and shift is multiplied by its own inverse."""

    def construct(self, gradients: Tensor) -> Tensor:
        return gradients * self.inverses[0].reshape(-1)


_STACKS = {"conv": _Kronecker, "dense": _Kronecker, "embedding": _Embedding, "norm": _Norm}


class Preconditioned(nn.Cell):
    """Optimizer on the preconditioned gradient, in one graph."""

    def __init__(self, preconditioner: Preconditioner, optimizer: nn.Cell, clip_norm: float | None) -> None:
        super().__init__(auto_prefix=False)
        self.preconditioner = preconditioner
        self.optimizer = optimizer if clip_norm is None else Clipped(optimizer, clip_norm)

    def construct(self, gradients: Tensor, learning_rate: Tensor) -> Tensor:
        """Update the weights from the flat mean gradient (parameters,); the direction is clipped to `clip_norm`."""
        return self.optimizer(self.preconditioner(gradients), learning_rate)


def _first(*given: Any) -> Any:
    return given[0]


def _identities(matrices: int, cut: Blocks) -> Tensor:
    return Tensor(
        np.broadcast_to(np.eye(cut.size, dtype=np.float32), (matrices * cut.count, cut.size, cut.size)).copy()
    )
