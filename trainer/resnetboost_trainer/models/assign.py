"""Writes values into parameters that compiled graphs read."""

from typing import Any

from mindspore import Parameter, Tensor, ops
from numpy.typing import NDArray


def write(parameter: Parameter, values: NDArray[Any]) -> None:
    """Copy values of the parameter's shape into the memory it has, where every compiled graph sees them.

    `Parameter.set_data`, and with it `load_param_into_net`, gives a parameter new memory. In MindSpore's default
    mode (PyNative) a graph that `mindspore.jit` has compiled keeps reading the old memory for ever and says nothing
    (2.10, on CPUs); in graph mode it follows. `ops.assign` writes where both modes look, in a quarter of a
    millisecond. Before a graph is compiled either will do.
    """
    ops.assign(parameter, Tensor(values, parameter.dtype))
