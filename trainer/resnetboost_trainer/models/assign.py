"""Writes values to parameters that compiled graphs read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops
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
    """Writes parts of float32 parameters like `write`, on CPUs in one call: each would take a quarter millisecond."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        operators = library.usable() if mindspore.get_context("device_target") == "CPU" else None
        self._operator = None
        if operators is not None:
            self._operator = primitive(operators, "write_parts", _second, _second)
            modes = [sig.sig_rw.RW_READ] * 2 + [sig.sig_rw.RW_WRITE] * len(self.parameters)
            self._operator.set_signatures([sig.make_sig(f"input{k}", mode) for k, mode in enumerate(modes)])
            self._operator.add_prim_attr("side_effect_mem", True)

    def write(self, parts: Sequence[Part]) -> None:
        """Copy the parts, of which there is at least one, into the parameters' existing memory."""
        if self._operator is None:
            return self._write_in_turn(parts)
        places = [[part.parameter, part.first, part.values.size] for part in parts]
        values = np.concatenate([part.values.reshape(-1) for part in parts])
        self._operator(Tensor(values), Tensor(places, mindspore.int32), *self.parameters)

    def _write_in_turn(self, parts: Sequence[Part]) -> None:
        for index in sorted({part.parameter for part in parts}):
            parameter = self.parameters[index]
            array = parameter.asnumpy().copy()
            for part in parts:
                if part.parameter == index:
                    array.reshape(-1)[part.first : part.first + part.values.size] = part.values.reshape(-1)
            write(parameter, array)


def _second(*given: Any) -> Any:
    return given[1]
