"""A residual network up to its head as one C++ operator, for float32 on CPUs (kernels/trunk.cpp).

Images stay in oneDNN's blocked format from the stem to the mean over the pixels. Layer by layer, each convolution
reorders them before and after, and each launch of an operator takes about 35 microseconds. The values are the same up
to rounding.
"""

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import signature as sig

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.models.arch import Block, Convolution, Topology, squeezed
from resnetboost_trainer.models.layers.norm import EPSILON, KEPT

SHORTCUTS = ("identity", "convolution", "subsampled")
# Tensors of a unit: a layer's weights, gamma, beta, moving mean and variance; a squeeze's two weights and biases.
LAYER, SQUEEZE = 5, 4


class Trunk(nn.Cell):
    """(n, c, h, w), tensors -> the features (n, channels): means over the pixels.

    The tensors are, of the stem and of each block's convolutions (the shortcut's last), weights, gamma, beta, moving
    mean and moving variance, and then of its squeeze and excitation the weights and bias of both layers. In training
    mode the moving statistics change in place. There is no gradient with respect to the images: it is NaN.
    """

    def __init__(self, operators: Path, topology: Topology) -> None:
        super().__init__(auto_prefix=False)
        code = tuple(program(topology))
        self.of_batch = _OfBatch(operators, code, units(topology), topology.features)
        self.of_running = _inference(operators, code, topology.features)
        self.program, self.constants = Tensor(code, ms.int32), Tensor([EPSILON, KEPT], ms.float32)

    def construct(self, images: Tensor, tensors: tuple[Tensor, ...], of_batch: bool) -> Tensor:
        """`of_batch`: normalize by the batch's statistics."""
        if of_batch:
            return self.of_batch(images, self.program, self.constants, tensors)[0]
        return self.of_running(images, self.program, self.constants, *tensors)


@contextlib.contextmanager
def layers_apart(network: nn.Cell) -> Iterator[None]:
    """Make the networks in a cell run layer by layer for a `with` block, where a graph is compiled or run."""
    fused = [cell for _, cell in network.cells_and_names() if getattr(cell, "fuses_layers", False)]
    try:
        for cell in fused:
            cell.fuses_layers = False
        yield
    finally:
        for cell in fused:
            cell.fuses_layers = True


def of(topology: Topology) -> Trunk | None:
    """The trunk of a network in float32, or None where the operator does not run it."""
    operators = library.usable() if ms.get_context("device_target") == "CPU" else None
    return Trunk(operators, topology) if operators is not None and _supports(operators, topology) else None


def _supports(operators: Path, topology: Topology) -> bool:
    """True if the operator runs this network on this CPU: it needs AVX2."""
    weights = [weight for weight, _ in _weights(topology)]
    return _saved(operators, tuple(program(topology)), (1, topology.stem.inputs, 32, 32), weights) > 0


def program(topology: Topology) -> Sequence[int]:
    """Encode a network for the operator, as kernels/trunk.cpp says."""
    code = [int(topology.pooled), topology.stem.stride, topology.stem.padding]
    for block in topology.blocks:
        code += [len(block.convolutions), SHORTCUTS.index(block.shortcut), int(block.squeezes)]
        code += [number for row in _rows(block) for number in (row.stride, row.padding)]
    return code


def units(topology: Topology) -> tuple[int, ...]:
    """Return the number of tensors of each unit in order."""
    return tuple(count for _, count in _weights(topology))


def _weights(topology: Topology) -> Iterator[tuple[Sequence[int], int]]:
    """The shape of each unit's first weights, and its number of tensors."""
    yield _shape(topology.stem), LAYER
    for block in topology.blocks:
        for row in _rows(block):
            yield _shape(row), LAYER
        if block.squeezes:
            yield (squeezed(block.outputs), block.outputs, 1, 1), SQUEEZE


def _rows(block: Block) -> Sequence[Convolution]:
    return [*block.convolutions, *([block.downsample] if block.downsample is not None else [])]


def _shape(row: Convolution) -> Sequence[int]:
    return row.outputs, row.inputs, row.kernel, row.kernel


def _saved(operators: Path, code: tuple[int, ...], images: Sequence[int], weights: Sequence[Sequence[int]]) -> int:
    """Return how many float32 a forward pass on images of that shape saves; 0 if they are not supported."""
    shapes = np.array(weights, np.int64)
    numbers = (ctypes.c_int * len(code))(*code)
    size = _size_function(operators)
    return int(size(numbers, len(code), (ctypes.c_int64 * 4)(*images), shapes.ctypes.data, len(shapes)))


@functools.cache
def _size_function(operators: Path) -> Any:
    size = ctypes.CDLL(str(operators)).resnetboost_trunk_saved
    size.restype = ctypes.c_int64
    size.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return size


class _OfBatch(nn.Cell):
    """(images, program, constants, tensors) -> the features, and what the gradients need."""

    def __init__(self, operators: Path, code: tuple[int, ...], parts: tuple[int, ...], features: int) -> None:
        """`parts` are the numbers of tensors of the units."""
        super().__init__(auto_prefix=False)
        self.given, self.sources = _given(parts), _sources(parts)
        self.forward_operator = _forward(operators, code, parts, features)
        self.backward_operator = _backward(operators, code, parts)

    def construct(
        self, images: Tensor, program: Tensor, constants: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.forward_operator(images, program, constants, *tensors)
        return found

    def bprop(
        self,
        images: Tensor,
        program: Tensor,
        constants: Tensor,
        tensors: tuple[Tensor, ...],
        out: tuple[Tensor, Tensor],
        dout: tuple[Tensor, Tensor],
    ) -> tuple[Any, ...]:
        given: tuple[Tensor, ...] = ()
        for k in self.given:
            given = (*given, tensors[k])
        found = self.backward_operator(images, program, out[1], dout[0], *given)
        gradients: tuple[Tensor, ...] = ()
        for k, source in enumerate(self.sources):
            gradients = (*gradients, ops.zeros_like(tensors[k]) if source < 0 else found[source])
        return ops.full_like(images, float("nan")), ops.zeros_like(program), ops.zeros_like(constants), gradients


def _given(parts: Sequence[int]) -> tuple[int, ...]:
    """Return which tensors the gradients need: weights and gamma of a layer, both weights of a squeeze."""
    places = itertools.accumulate(parts, initial=0)
    return tuple(
        place + k for place, part in zip(places, parts, strict=False) for k in ((0, 1) if part == LAYER else (0, 2))
    )


def _sources(parts: Sequence[int]) -> tuple[int, ...]:
    """Return for each tensor the index of its gradient among those found, or -1 for moving statistics."""
    learns = [learns for part in parts for learns in ((1, 1, 1, 0, 0) if part == LAYER else (1,) * SQUEEZE)]
    return tuple(sum(learns[:k]) if one else -1 for k, one in enumerate(learns))


def _forward(operators: Path, code: tuple[int, ...], parts: tuple[int, ...], features: int) -> ops.Custom:
    first = [sum(parts[:k]) for k in range(len(parts))]

    def results(images: Sequence[int], program: Any, constants: Any, *tensors: Sequence[int]) -> tuple[Any, Any]:
        return (images[0], features), (_saved(operators, code, images, [tensors[k] for k in first]),)

    def types(images: Any, *others: Any) -> tuple[Any, Any]:
        return images, images

    made = primitive(operators, "trunk", results, types, program=_attribute(code))
    # The moving statistics change in place: the compiler must not drop the operator or run it twice.
    read, written = sig.sig_rw.RW_READ, sig.sig_rw.RW_WRITE
    modes = [read] * 3
    for part in parts:
        modes += [read, read, read, written, written] if part == LAYER else [read] * SQUEEZE
    made.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
    made.add_prim_attr("side_effect_mem", True)
    return made


def _backward(operators: Path, code: tuple[int, ...], parts: tuple[int, ...]) -> ops.Custom:
    def shapes(*given: Sequence[int]) -> tuple[Sequence[int], ...]:
        found: list[Sequence[int]] = []
        for k, part in enumerate(parts):
            weights, second = given[4 + 2 * k : 6 + 2 * k]
            found += [weights, second, second] if part == LAYER else [weights, weights[:1], second, second[:1]]
        return tuple(found)

    def types(*given: Any) -> tuple[Any, ...]:
        return tuple(given[0] for part in parts for _ in range(3 if part == LAYER else SQUEEZE))

    return primitive(operators, "trunk_gradients", shapes, types, program=_attribute(code))


def _inference(operators: Path, code: tuple[int, ...], features: int) -> ops.Custom:
    def result(images: Sequence[int], *others: Any) -> tuple[int, int]:
        return images[0], features

    def type_of_images(images: Any, *others: Any) -> Any:
        return images

    return primitive(operators, "trunk_inference", result, type_of_images, program=_attribute(code))


def _attribute(code: tuple[int, ...]) -> str:
    """What distinguishes the primitives of two networks for MindSpore (kernels/primitive.py)."""
    return ",".join(map(str, code))
