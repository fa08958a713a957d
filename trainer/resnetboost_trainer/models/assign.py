"""Writes values to parameters that compiled graphs read."""

from typing import Any

from mindspore import Parameter, Tensor, ops
from numpy.typing import NDArray


def write(parameter: Parameter, values: NDArray[Any]) -> None:
    """Copy values into the parameter's existing memory, where every compiled graph sees them.

    `Parameter.set_data`, and so `load_param_into_net`, gives a parameter new memory. In MindSpore's default mode
    (PyNative) a graph compiled by `mindspore.jit` silently keeps reading the old memory (2.10, on CPUs); in graph mode
    it follows. `ops.assign` works in both modes and takes a quarter of a millisecond. Before a graph is compiled either
    will do.
    """
    ops.assign(parameter, Tensor(values, parameter.dtype))
