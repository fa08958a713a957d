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
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import signature as sig

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive
from resnetboost_trainer.models.arch import STATISTICS, Block, Convolution, Topology, squeezed
from resnetboost_trainer.models.layers.norm import EPSILON, KEPT

_NORM = ("gamma", "beta", *STATISTICS)
_SQUEEZE = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
SHORTCUTS = ("identity", "convolution", "subsampled", "averaged")


class Trunk(nn.Cell):
    """(n, c, h, w), tensors -> the features (n, channels): means over the pixels.

    The tensors are those that `names` lists. In training mode the moving statistics change in place. There is no
    gradient with respect to the images: it is NaN.
    """

    def __init__(self, operators: Path, topology: Topology) -> None:
        super().__init__(auto_prefix=False)
        code = tuple(program(topology))
        self.operators, self.topology = operators, topology
        self.of_batch = _OfBatch(operators, topology)
        self.of_running = _inference(operators, code, topology.features)
        self.program, self.constants = Tensor(code, ms.int32), Tensor([EPSILON, KEPT], ms.float32)

    def construct(self, images: Tensor, tensors: tuple[Tensor, ...], of_batch: bool) -> Tensor:
        """`of_batch`: normalize by the batch's statistics."""
        if of_batch:
            return self.of_batch(images, self.program, self.constants, tensors)[0]
        return self.of_running(images, self.program, self.constants, *tensors)


class CapturingTrunk(nn.Cell):
    """A trunk in training mode that also says what its convolutions see.

    `probes` are parameters that nothing reads: for each cell that `convolutions` lists one for its input and one for
    the gradient of its output. Their gradients are these tensors.
    """

    def __init__(self, trunk: Trunk, probes: Sequence[tuple[Parameter, Parameter]]) -> None:
        super().__init__(auto_prefix=False)
        self.of_batch = _OfBatch(trunk.operators, trunk.topology, captures=True)
        layers, squeezes = self.of_batch.layers, self.of_batch.squeezes
        kinds = [zip(*cells, strict=True) for cells in _cut(probes, layers, squeezes, squeezes)]
        # MindSpore would register the parameters once more, under other names.
        object.__setattr__(self, "probes", tuple(probe for kind in kinds for one in kind for probe in one))
        self.program, self.constants = trunk.program, trunk.constants

    def construct(self, images: Tensor, tensors: tuple[Tensor, ...], of_batch: bool) -> Tensor:
        """As the trunk; there is no gradient by running statistics, so `of_batch` is true."""
        return self.of_batch(images, self.program, self.constants, tensors + self.probes)[0]


def separate(network: nn.Cell) -> None:
    """Make the networks in a cell run layer by layer from now on."""
    for cell in fused_networks(network):
        cell.fuses_layers = False


def fused_networks(network: nn.Cell) -> list[nn.Cell]:
    """The networks in a cell whose trunk runs as one operator."""
    return [cell for _, cell in network.cells_and_names() if getattr(cell, "fuses_layers", False)]


@contextlib.contextmanager
def layers_apart(network: nn.Cell, but: Sequence[nn.Cell] = ()) -> Iterator[None]:
    """Make the networks in a cell, `but` those, run layer by layer while a `with` block compiles or runs a graph."""
    kept = {id(cell) for cell in but}
    fused = [cell for cell in fused_networks(network) if id(cell) not in kept]
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
    images = (1, topology.stem[0].inputs, 32, 32)
    return _saved(operators, tuple(program(topology)), images, _weights(topology)) > 0


def program(topology: Topology) -> Sequence[int]:
    """Encode a network for the operator, as kernels/trunk.cpp says."""
    code = [int(topology.pooled), len(topology.stem)]
    code += [number for row in topology.stem for number in (row.stride, row.padding)]
    for block in topology.blocks:
        shortcut = "convolution" if block.shortcut == "averaged" and not block.averages else block.shortcut
        code += [len(block.convolutions), SHORTCUTS.index(shortcut), int(block.squeezes)]
        code += [number for row in _rows(block) for number in (row.stride, row.padding)]
    return code


def names(topology: Topology) -> Sequence[str]:
    """List the tensors: weights, gammas, betas and moving statistics of all layers, then those of all squeezes."""
    rows, paths = list(topology.convolutions), [block.path for block in topology.blocks if block.squeezes]
    of_layers = [f"{row.name}.weight" for row in rows] + [f"{row.norm}.{kind}" for kind in _NORM for row in rows]
    return [*of_layers, *(f"{path}.se.{kind}" for kind in _SQUEEZE for path in paths)]


def convolutions(topology: Topology) -> Sequence[str]:
    """List the cells of all convolutions: those of the layers, then the first of all squeezes, then the second."""
    paths = [block.path for block in topology.blocks if block.squeezes]
    squeezes = [f"{path}.se.{name}" for name in ("fc1", "fc2") for path in paths]
    return [*(row.name for row in topology.convolutions), *squeezes]


def _weights(topology: Topology) -> Sequence[Sequence[int]]:
    """The shapes of the layers' weights and of the squeezes' first ones."""
    layers = [row.shape for row in topology.convolutions]
    return [*layers, *((squeezed(block.outputs), block.outputs, 1, 1) for block in topology.blocks if block.squeezes)]


def _rows(block: Block) -> Sequence[Convolution]:
    return [*block.convolutions, *([block.downsample] if block.downsample is not None else [])]


def _saved(operators: Path, code: tuple[int, ...], images: Sequence[int], weights: Sequence[Sequence[int]]) -> int:
    """Return how many float32 a forward pass on images of that shape saves; 0 if they are not supported."""
    return _read(operators, code, images, weights)[0]


def _read(
    operators: Path, code: tuple[int, ...], images: Sequence[int], weights: Sequence[Sequence[int]]
) -> tuple[int, list[tuple[int, ...]]]:
    """Return `_saved` and the shapes of the images of all layers, then those of their results."""
    given, shapes = np.array(weights, np.int64), np.zeros((2 * len(weights), 4), np.int64)
    numbers, of_images = (ctypes.c_int * len(code))(*code), (ctypes.c_int64 * 4)(*images)
    size = _size_function(operators)
    saved = size(numbers, len(code), of_images, given.ctypes.data, len(given), shapes.ctypes.data)
    return int(saved), [tuple(shape) for shape in shapes.tolist()]


@functools.cache
def _size_function(operators: Path) -> Any:
    size = ctypes.CDLL(str(operators)).resnetboost_trunk_saved
    size.restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    size.argtypes = [pointer, number, pointer, pointer, number, pointer]
    return size


class _OfBatch(nn.Cell):
    """(images, program, constants, tensors) -> the features, and what the gradients need.

    If it `captures`, probes follow the tensors: of the layers, the first convolutions of the squeezes and the second
    ones, for the inputs of all and then for the gradients of all outputs. Without loops: MindSpore compiles each round
    of a loop as a call within the one before, up to 1000.
    """

    def __init__(self, operators: Path, topology: Topology, captures: bool = False) -> None:
        super().__init__(auto_prefix=False)
        code = tuple(program(topology))
        self.layers = len(list(topology.convolutions))
        self.squeezes = sum(block.squeezes for block in topology.blocks)
        self.forward_operator = _forward(operators, code, self.layers, self.squeezes, topology.features)
        self.backward_operator = _backward(operators, code, self.layers, self.squeezes, captures)
        self.each = ops.HyperMap()

    def construct(
        self, images: Tensor, program: Tensor, constants: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        own = tensors[: 5 * self.layers + 4 * self.squeezes]
        found: tuple[Tensor, Tensor] = self.forward_operator(images, program, constants, *own)
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
        n, m = self.layers, self.squeezes
        given = tensors[: 2 * n] + tensors[5 * n : 5 * n + m] + tensors[5 * n + 2 * m : 5 * n + 3 * m]
        found = self.backward_operator(images, program, out[1], dout[0], *given)
        of_statistics = self.each(ops.zeros_like, tensors[3 * n : 5 * n])
        gradients = found[: 3 * n] + of_statistics + found[3 * n :]
        return ops.full_like(images, float("nan")), ops.zeros_like(program), ops.zeros_like(constants), gradients


def _forward(operators: Path, code: tuple[int, ...], layers: int, squeezes: int, features: int) -> ops.Custom:
    def results(images: Sequence[int], program: Any, constants: Any, *kept: Sequence[int]) -> tuple[Any, Any]:
        weights = [*kept[:layers], *kept[5 * layers : 5 * layers + squeezes]]
        return (images[0], features), (_saved(operators, code, images, weights),)

    def types(images: Any, *others: Any) -> tuple[Any, Any]:
        return images, images

    made = primitive(operators, "trunk", results, types, program=_attribute(code))
    # The moving statistics change in place: the compiler must not drop the operator or run it twice.
    read, written = sig.sig_rw.RW_READ, sig.sig_rw.RW_WRITE
    modes = [read] * (3 + 3 * layers) + [written] * (2 * layers) + [read] * (4 * squeezes)
    made.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
    made.add_prim_attr("side_effect_mem", True)
    return made


def _backward(operators: Path, code: tuple[int, ...], layers: int, squeezes: int, captures: bool) -> ops.Custom:
    def shapes(*given: Sequence[int]) -> tuple[Sequence[int], ...]:
        weights, gammas, w1, w2 = _cut(given[4:], layers, layers, squeezes, squeezes)
        found = (*weights, *gammas, *gammas, *w1, *(one[:1] for one in w1), *w2, *(one[:1] for one in w2))
        if not captures:
            return found
        n = given[0][0]
        inputs_and_results = _read(operators, code, given[0], [*weights, *w1])[1][: 2 * layers]
        wide, narrow = [(n, one[1], 1, 1) for one in w1], [(n, one[0], 1, 1) for one in w1]
        return (*found, *inputs_and_results, *wide, *narrow, *narrow, *wide)

    def types(*given: Any) -> tuple[Any, ...]:
        return (given[0],) * ((5 if captures else 3) * layers + (8 if captures else 4) * squeezes)

    return primitive(operators, "trunk_gradients", shapes, types, program=_attribute(code), captures=int(captures))


def _cut(given: Sequence[Any], *lengths: int) -> Iterator[Sequence[Any]]:
    ends = list(itertools.accumulate(lengths, initial=0))
    return (given[begin:end] for begin, end in itertools.pairwise(ends))


def _inference(operators: Path, code: tuple[int, ...], features: int) -> ops.Custom:
    def result(images: Sequence[int], *others: Any) -> tuple[int, int]:
        return images[0], features

    def type_of_images(images: Any, *others: Any) -> Any:
        return images

    return primitive(operators, "trunk_inference", result, type_of_images, program=_attribute(code))


def _attribute(code: tuple[int, ...]) -> str:
    """What distinguishes the primitives of two networks for MindSpore (kernels/primitive.py)."""
    return ",".join(map(str, code))
