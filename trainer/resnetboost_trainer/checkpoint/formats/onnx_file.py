"""Exports a network as an ONNX graph, built from its topology and weights without MindSpore.

MindSpore's own exporter fails on these networks on CPUs (2.10.0: Conv2D's padding).
The graph maps normalised images (batch, channels, height, width) of any batch size to logits (batch, classes).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from resnetboost_trainer.checkpoint.state_dict import Array, Network
from resnetboost_trainer.models import arch
from resnetboost_trainer.models.arch import Block, Convolution, Topology

OPSET, IR_VERSION = 17, 8  # those of ONNX 1.12, which runtimes that are years old still read
EPSILON = 1e-5  # same as norm.EPSILON, whose module imports MindSpore
IMAGES, LOGITS = "images", "logits"


def write(
    path: Path, network: Network, arrays: Mapping[str, Array], size: tuple[int, int], notes: Mapping[str, str]
) -> None:
    """Write the network for images of `size` (height, width), with `notes` as metadata. Raises OSError."""
    graph = _Graph(arrays)
    graph.add("Identity", [_network(graph, arch.topology(network.name, network.channels))], LOGITS)
    images = _floats(IMAGES, network.channels, *size)
    whole = helper.make_graph(graph.nodes, network.name, [images], [_floats(LOGITS, network.classes)], graph.tensors)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(whole, ir_version=IR_VERSION, opset_imports=opsets, producer_name="resnetboost")
    helper.set_model_props(model, {key: _valid(note) for key, note in notes.items()})
    path.write_bytes(model.SerializeToString())


def _floats(name: str, *shape: int) -> ValueInfoProto:
    """Declare a float32 input or output with a symbolic batch size."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])


def _valid(text: str) -> str:
    """Replace the halves of surrogate pairs that stand for a file name's odd bytes: protobuf takes valid text only."""
    return text.encode(errors="replace").decode()


class _Graph:
    """Collects the nodes and weights of an ONNX graph; a node's output has the node's name."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = arrays
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def add(self, kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def weight(self, name: str, value: Array | None = None) -> str:
        self.tensors.append(numpy_helper.from_array(self.arrays[name] if value is None else value, name))
        return name

    def normalised(self, x: str, row: Convolution) -> str:
        """Add a convolution and its batch normalisation."""
        kernel, stride, pads = [row.kernel] * 2, [row.stride] * 2, [row.padding] * 4
        inputs, window = (
            [x, self.weight(f"{row.name}.weight")],
            {"kernel_shape": kernel, "strides": stride, "pads": pads},
        )
        return self.norm(self.add("Conv", inputs, row.name, **window, group=row.groups), row.norm)

    def biased(self, x: str, path: str) -> str:
        """Add a 1x1 convolution with bias."""
        inputs = [x, *(self.weight(f"{path}.{last}") for last in ("weight", "bias"))]
        return self.add("Conv", inputs, path, kernel_shape=[1, 1], strides=[1, 1], pads=[0] * 4)

    def norm(self, x: str, path: str) -> str:
        names = [self.weight(f"{path}.{last}") for last in ("gamma", "beta", *arch.STATISTICS)]
        return self.add("BatchNormalization", [x, *names], path, epsilon=EPSILON)

    def relu(self, x: str) -> str:
        return self.add("Relu", [x], f"{x}.relu")

    def head(self, x: str) -> str:
        means = self.add("Flatten", [self.add("GlobalAveragePool", [x], "mean")], "flat", axis=1)
        dense = [self.weight(f"{arch.HEAD}.{last}") for last in ("weight", "bias")]
        return self.add("Gemm", [means, *dense], arch.HEAD, transB=1)


def _network(graph: _Graph, network: Topology) -> str:
    y = IMAGES
    for row in network.stem:
        y = graph.relu(graph.normalised(y, row))
    if network.pooled:
        y = graph.add("MaxPool", [y], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for block in network.blocks:
        shortcut = _shortcut(graph, y, block)
        y = graph.relu(graph.add("Add", [_residual(graph, y, block), shortcut], f"{block.path}.sum"))
    return graph.head(y)


def _residual(graph: _Graph, x: str, block: Block) -> str:
    *first, last = block.convolutions
    for row in first:
        x = graph.relu(graph.normalised(x, row))
    y = graph.normalised(x, last)
    return _weighed(graph, y, f"{block.path}.se") if block.squeezes else y


def _shortcut(graph: _Graph, x: str, block: Block) -> str:
    if block.averages:  # windows at an odd border are the means of what is inside
        pool = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 0}
        x = graph.add("AveragePool", [x], f"{block.path}.averaged", **pool)
    if block.downsample is not None:
        return graph.normalised(x, block.downsample)
    return _subsampled(graph, x, block.path, block.outputs - block.inputs) if block.shortcut == "subsampled" else x


def _weighed(graph: _Graph, x: str, path: str) -> str:
    """Add squeeze and excitation."""
    means = graph.add("GlobalAveragePool", [x], f"{path}.mean")
    inner = graph.relu(graph.biased(means, f"{path}.fc1"))
    shares = graph.add("Sigmoid", [graph.biased(inner, f"{path}.fc2")], f"{path}.share")
    return graph.add("Mul", [x, shares], path)


def _subsampled(graph: _Graph, x: str, path: str, additional: int) -> str:
    """Add an option A shortcut: every second row and column, and `additional` channels of zeros."""
    every_second = graph.add("AveragePool", [x], f"{path}.subsampled", kernel_shape=[1, 1], strides=[2, 2])
    pads = graph.weight(f"{path}.pads", np.array([0, 0, 0, 0, 0, additional, 0, 0], np.int64))
    return graph.add("Pad", [every_second, pads], f"{path}.padded")
