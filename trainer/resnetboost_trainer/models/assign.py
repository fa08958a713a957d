"""Writes values to parameters that compiled graphs read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import signature as sig
from numpy.typing import NDArray

from resnetboost_trainer.kernels import library
from resnetboost_trainer.kernels.primitive import primitive


class Part(NamedTuple):
    """New values of a parameter, from index `first` of its flat form on."""

    parameter: int
    first: int
    values: NDArray[np.float32]


def write(parameter: Parameter, values: NDArray[Any]) -> None:
    """Copy values into the parameter's existing memory, where every compiled graph sees them.

    `Parameter.set_data`, and so `load_param_into_net`, gives a parameter new memory. In MindSpore's default mode
    (PyNative) a graph compiled by `mindspore.jit` silently keeps reading the old memory (2.10, on CPUs); in graph mode
    it follows. `ops.assign` works in both modes and takes a quarter of a millisecond. Before a graph is compiled either
    will do.
    """
    ops.assign(parameter, Tensor(values, parameter.dtype))


class Writer:
    """Writes float32 parameters like `write`, on CPUs all in one call: each would take a quarter of a millisecond."""

    def __init__(self, parameters: Sequence[Parameter], most: int) -> None:
        """`most` parts are written at once."""
        self.parameters, self._most = list(parameters), most
        operators = library.usable() if mindspore.get_context("device_target") == "CPU" else None
        self._graph = None if operators is None else _Written(operators, self.parameters)
        self._numbers = sum(parameter.size for parameter in parameters)

    def write(self, parts: Sequence[Part]) -> None:
        """Copy the parts, which do not overlap, into the parameters' existing memory."""
        if self._graph is None:
            return self._write_in_turn(parts)
        values, places, end = np.empty(self._numbers, np.float32), [], 0
        for part in parts:
            values[end : end + part.values.size] = part.values.reshape(-1)
            places.append((part.parameter, part.first, part.values.size))
            end += part.values.size
        table = np.zeros((self._most, 3), np.int32)
        table[: len(places)] = places
        self._graph(
            Tensor.from_numpy(values), Tensor(table)
        )  # of the same shapes every time, so that it is compiled once

    def _write_in_turn(self, parts: Sequence[Part]) -> None:
        for index in sorted({part.parameter for part in parts}):
            parameter = self.parameters[index]
            array = parameter.asnumpy().copy()
            for part in parts:
                if part.parameter == index:
                    array.reshape(-1)[part.first : part.first + part.values.size] = part.values.reshape(-1)
            write(parameter, array)


class _Written(nn.Cell):
    """(values, table (parts, 3) of parameter, first and length) -> the table; writes the parts."""

    def __init__(self, operators: Path, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(parameters)
        self.operator = primitive(operators, "write_parts", _second, _second)
        modes = [sig.sig_rw.RW_READ] * 2 + [sig.sig_rw.RW_WRITE] * len(parameters)
        self.operator.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
        self.operator.add_prim_attr("side_effect_mem", True)

    def construct(self, values: Tensor, table: Tensor) -> Tensor:
        return self.operator(values, table, *self.parameters)


def _second(*given: Any) -> Any:
    return given[1]
