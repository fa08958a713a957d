"""Write a network as an ONNX graph, from its structure and weights alone.

MindSpore's own exporter fails on these networks on CPUs (2.10.0: Conv2D's padding).
The graph takes normalised images (batch, channels, height, width), any batch, and gives logits (batch, classes).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from resnetboost_trainer.models import arch
from resnetboost_trainer.models.arch import LARGE, SMALL, Large
from resnetboost_trainer.models.state_dict import Array, Network

OPSET, IR_VERSION = 17, 8  # of ONNX 1.12: what has not been updated for years still reads it
EPSILON = 1e-5  # of norm.BatchNorm, which needs MindSpore
IMAGES, LOGITS = "images", "logits"


def write(
    path: Path, network: Network, arrays: Mapping[str, Array], size: tuple[int, int], notes: Mapping[str, str]
) -> None:
    """Write the network for images of that height and width; `notes` go into its metadata. Raises OSError."""
    graph = _Graph(arrays)
    logits = _large(graph, LARGE[network.name]) if network.name in LARGE else _small(graph, SMALL[network.name])
    graph.add("Identity", [logits], LOGITS)
    images = _floats(IMAGES, network.channels, *size)
    whole = helper.make_graph(graph.nodes, network.name, [images], [_floats(LOGITS, network.classes)], graph.tensors)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(whole, ir_version=IR_VERSION, opset_imports=opsets, producer_name="resnetboost")
    helper.set_model_props(model, {key: _valid(note) for key, note in notes.items()})
    path.write_bytes(model.SerializeToString())


def _floats(name: str, *shape: int) -> ValueInfoProto:
    """Declare an input or output of any batch."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])


def _valid(text: str) -> str:
    """Replace the halves of surrogate pairs that stand for a file name's odd bytes: protobuf takes valid text only."""
    return text.encode(errors="replace").decode()


class _Graph:
    """Nodes and weights so far; what a node makes has the node's name."""

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

    def convolution(self, x: str, path: str, stride: int = 1, padding: int = 0, bias: bool = False) -> str:
        kernel = self.arrays[f"{path}.weight"].shape[2:]
        inputs = [x, self.weight(f"{path}.weight"), *([self.weight(f"{path}.bias")] if bias else [])]
        return self.add("Conv", inputs, path, kernel_shape=[*kernel], strides=[stride] * 2, pads=[padding] * 4)

    def norm(self, x: str, path: str) -> str:
        names = [self.weight(f"{path}.{last}") for last in ("gamma", "beta", *arch.STATISTICS)]
        return self.add("BatchNormalization", [x, *names], path, epsilon=EPSILON)

    def relu(self, x: str) -> str:
        return self.add("Relu", [x], f"{x}.relu")

    def head(self, x: str) -> str:
        means = self.add("Flatten", [self.add("GlobalAveragePool", [x], "mean")], "flat", axis=1)
        dense = [self.weight(f"{arch.HEAD}.{last}") for last in ("weight", "bias")]
        return self.add("Gemm", [means, *dense], arch.HEAD, transB=1)


def _large(graph: _Graph, form: Large) -> str:
    y = graph.relu(graph.norm(graph.convolution(IMAGES, "conv1", 2, 3), "bn1"))
    y = graph.add("MaxPool", [y], "maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for group, count in enumerate(form.blocks):
        for block in range(count):
            path, stride = f"layer{group + 1}.{block}", 2 if group and not block else 1
            shortcut = y
            if f"{path}.downsample.0.weight" in graph.arrays:
                shortcut = graph.norm(graph.convolution(y, f"{path}.downsample.0", stride), f"{path}.downsample.1")
            y = (
                _bottleneck(graph, y, path, stride, form.squeezes)
                if form.bottleneck
                else _basic(graph, y, path, stride)
            )
            y = graph.relu(graph.add("Add", [y, shortcut], f"{path}.sum"))
    return graph.head(y)


def _small(graph: _Graph, count: int) -> str:
    y = graph.relu(graph.norm(graph.convolution(IMAGES, "conv1", 1, 1), "bn1"))
    for group in range(3):
        for block in range(count):
            path, stride = f"layer{group + 1}.{block}", 2 if group and not block else 1
            shortcut = _subsampled(graph, y, path, 8 << group) if stride == 2 else y
            y = _basic(graph, y, path, stride)
            y = graph.relu(graph.add("Add", [y, shortcut], f"{path}.sum"))
    return graph.head(y)


def _basic(graph: _Graph, x: str, path: str, stride: int) -> str:
    y = graph.relu(graph.norm(graph.convolution(x, f"{path}.conv1", stride, 1), f"{path}.bn1"))
    return graph.norm(graph.convolution(y, f"{path}.conv2", 1, 1), f"{path}.bn2")


def _bottleneck(graph: _Graph, x: str, path: str, stride: int, squeezes: bool) -> str:
    y = graph.relu(graph.norm(graph.convolution(x, f"{path}.conv1"), f"{path}.bn1"))
    y = graph.relu(graph.norm(graph.convolution(y, f"{path}.conv2", stride, 1), f"{path}.bn2"))
    y = graph.norm(graph.convolution(y, f"{path}.conv3"), f"{path}.bn3")
    return _weighed(graph, y, f"{path}.se") if squeezes else y


def _weighed(graph: _Graph, x: str, path: str) -> str:
    """Squeeze and excitation."""
    means = graph.add("GlobalAveragePool", [x], f"{path}.mean")
    inner = graph.relu(graph.convolution(means, f"{path}.fc1", bias=True))
    shares = graph.add("Sigmoid", [graph.convolution(inner, f"{path}.fc2", bias=True)], f"{path}.share")
    return graph.add("Mul", [x, shares], path)


def _subsampled(graph: _Graph, x: str, path: str, additional: int) -> str:
    """Option A: every second row and column, and `additional` channels of zeros."""
    every_second = graph.add("AveragePool", [x], f"{path}.subsampled", kernel_shape=[1, 1], strides=[2, 2])
    pads = graph.weight(f"{path}.pads", np.array([0, 0, 0, 0, 0, additional, 0, 0], np.int64))
    return graph.add("Pad", [every_second, pads], f"{path}.padded")
