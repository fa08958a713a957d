"""A residual network up to its head as one C++ operator, for float32 on CPUs (kernels/trunk.cpp).

Images stay in oneDNN's blocked format from the stem to the mean over the pixels. Layer by layer, each convolution
reorders them before and after, and each launch of an operator takes about 35 microseconds. The values are the same up
to rounding.
"""

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import signature as sig

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.models.arch import Topology
from resnetboost_trainer.models.layers.norm import EPSILON, KEPT

SHORTCUTS = ("identity", "convolution", "subsampled")
LAYER = 5  # tensors of a layer: weights, gamma, beta, moving mean, moving variance


class Trunk(nn.Cell):
    """(n, c, h, w), five tensors of each layer -> the features (n, channels): means over the pixels.

    The layers are those of `arch.Topology.convolutions`, each with weights, gamma, beta, moving mean and variance. In
    training mode the moving statistics change in place. There is no gradient with respect to the images: it is NaN.
    """

    def __init__(self, operators: Path, topology: Topology) -> None:
        super().__init__(auto_prefix=False)
        code = tuple(program(topology))
        self.of_batch = _OfBatch(operators, code, len(list(topology.convolutions)), topology.features)
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
    """True if the operator runs this network on this CPU: it needs AVX2, and has no squeeze and excitation."""
    if any(block.squeezes for block in topology.blocks):
        return False
    weights = [(row.outputs, row.inputs, row.kernel, row.kernel) for row in topology.convolutions]
    return _saved(operators, tuple(program(topology)), (1, topology.stem.inputs, 32, 32), weights) > 0


def program(topology: Topology) -> Sequence[int]:
    """Encode a network for the operator, as kernels/trunk.cpp says."""
    code = [int(topology.pooled), topology.stem.stride, topology.stem.padding]
    for block in topology.blocks:
        code += [len(block.convolutions), SHORTCUTS.index(block.shortcut)]
        rows = [*block.convolutions, *([block.downsample] if block.downsample is not None else [])]
        code += [number for row in rows for number in (row.stride, row.padding)]
    return code


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

    def __init__(self, operators: Path, code: tuple[int, ...], layers: int, features: int) -> None:
        super().__init__(auto_prefix=False)
        self.layers = layers
        self.forward_operator = _forward(operators, code, layers, features)
        self.backward_operator = _backward(operators, code)

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
        for k in range(self.layers):
            given = (*given, tensors[LAYER * k], tensors[LAYER * k + 1])
        found = self.backward_operator(images, program, out[1], dout[0], *given)
        gradients: tuple[Tensor, ...] = ()
        for k in range(self.layers):
            unused = (ops.zeros_like(tensors[LAYER * k + 3]), ops.zeros_like(tensors[LAYER * k + 4]))
            gradients = (*gradients, found[3 * k], found[3 * k + 1], found[3 * k + 2], *unused)
        return ops.full_like(images, float("nan")), ops.zeros_like(program), ops.zeros_like(constants), gradients


def _forward(operators: Path, code: tuple[int, ...], layers: int, features: int) -> ops.Custom:
    def results(images: Sequence[int], program: Any, constants: Any, *tensors: Sequence[int]) -> tuple[Any, Any]:
        return (images[0], features), (_saved(operators, code, images, tensors[::LAYER]),)

    def types(images: Any, *others: Any) -> tuple[Any, Any]:
        return images, images

    made = primitive(operators, "trunk", results, types, program=_attribute(code))
    # The moving statistics change in place: the compiler must not drop the operator or run it twice.
    read, written = sig.sig_rw.RW_READ, sig.sig_rw.RW_WRITE
    modes = [read] * 3 + [read, read, read, written, written] * layers
    made.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
    made.add_prim_attr("side_effect_mem", True)
    return made


def _backward(operators: Path, code: tuple[int, ...]) -> ops.Custom:
    def of_each(images: Any, program: Any, saved: Any, dfeatures: Any, *tensors: Any) -> tuple[Any, ...]:
        return tuple(found for k in range(0, len(tensors), 2) for found in (tensors[k], tensors[k + 1], tensors[k + 1]))

    return primitive(operators, "trunk_gradients", of_each, of_each, program=_attribute(code))


def _inference(operators: Path, code: tuple[int, ...], features: int) -> ops.Custom:
    def result(images: Sequence[int], *others: Any) -> tuple[int, int]:
        return images[0], features

    def type_of_images(images: Any, *others: Any) -> Any:
        return images

    return primitive(operators, "trunk_inference", result, type_of_images, program=_attribute(code))


def _attribute(code: tuple[int, ...]) -> str:
    """What distinguishes the primitives of two networks for MindSpore (kernels/primitive.py)."""
    return ",".join(map(str, code))
