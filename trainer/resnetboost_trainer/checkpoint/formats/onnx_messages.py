"""The messages of an ONNX file in protobuf's wire format; it knows nothing of networks.

Field numbers are those of onnx.proto3, where a message is its fields one after another: a key (number * 8 + type), then
a varint (type 0), four bytes (5) or a length and so many bytes (2).
"""

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Attribute = int | float | Sequence[int]

# TensorProto.DataType and AttributeProto.AttributeType
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}
_FLOAT, _INT, _INTS = 1, 2, 7


def model(graph: bytes, ir_version: int, opset: int, notes: Mapping[str, str]) -> bytes:
    """ModelProto: the whole file."""
    metadata = [_bytes(14, _text(1, key) + _text(2, value)) for key, value in notes.items()]
    opsets = _bytes(8, _text(1, "") + _varint(2, opset))
    return b"".join([_varint(1, ir_version), _text(2, "resnetboost"), _bytes(7, graph), opsets, *metadata])


def graph(
    name: str, nodes: Sequence[bytes], tensors: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]
) -> bytes:
    """GraphProto of such messages; nodes stand after those whose results they take."""
    fields = ((1, nodes), (5, tensors), (11, inputs), (12, outputs))
    return _text(2, name) + b"".join(_bytes(number, message) for number, each in fields for message in each)


def node(kind: str, name: str, inputs: Sequence[str], attributes: Mapping[str, Attribute]) -> bytes:
    """NodeProto with one result, which has the node's name."""
    given = [_text(1, each) for each in inputs]
    options = [_bytes(5, _attribute(key, value)) for key, value in attributes.items()]
    return b"".join([*given, _text(2, name), _text(3, name), _text(4, kind), *options])


def tensor(name: str, array: NDArray[np.generic]) -> bytes:
    """TensorProto of float32 or int64."""
    dimensions = b"".join(_varint(1, size) for size in array.shape)
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return dimensions + _varint(2, _TYPES[array.dtype]) + _text(8, name) + _bytes(9, data)


def value(name: str, shape: Sequence[int | str]) -> bytes:
    """ValueInfoProto of a float32 tensor; a size that is open has a name."""
    sizes = [_varint(1, size) if isinstance(size, int) else _text(2, size) for size in shape]
    dimensions = b"".join(_bytes(1, size) for size in sizes)
    return _text(1, name) + _bytes(2, _bytes(1, _varint(1, _FLOAT) + _bytes(2, dimensions)))


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _varint(3, value) + _varint(20, _INT)
    if isinstance(value, float):
        return _text(1, name) + _key(2, 5) + struct.pack("<f", value) + _varint(20, _FLOAT)
    return _text(1, name) + b"".join(_varint(8, each) for each in value) + _varint(20, _INTS)


def _key(number: int, kind: int) -> bytes:
    return _encoded(number << 3 | kind)


def _varint(number: int, value: int) -> bytes:
    return _key(number, 0) + _encoded(value)


def _bytes(number: int, data: bytes) -> bytes:
    return _key(number, 2) + _encoded(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode(errors="replace"))


def _encoded(value: int) -> bytes:
    """A number of at least 0 in groups of seven bits, the lowest first; the eighth says that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
