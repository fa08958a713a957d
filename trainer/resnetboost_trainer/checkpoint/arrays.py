"""Converts named parameters to named arrays and to one flat vector, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Parameter

from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models.assign import write

Floats = npt.NDArray[np.float32]
Arrays = dict[str, Floats]


def count(parameters: Mapping[str, Parameter]) -> int:
    """Return the total number of elements."""
    return sum(parameter.size for parameter in parameters.values())


def copy(parameters: Mapping[str, Parameter]) -> Arrays:
    """Copy the values to arrays, so that training can continue while they are written."""
    return {name: parameter.asnumpy().copy() for name, parameter in parameters.items()}


def flatten(parameters: Mapping[str, Parameter]) -> Floats:
    """Concatenate the values into one vector, in the order of the mapping."""
    return _concatenated([parameter.asnumpy().reshape(-1) for parameter in parameters.values()])


def unflatten(flat: Floats, parameters: Mapping[str, Parameter]) -> Arrays:
    """Split a vector from `flatten` into copies with the parameters' shapes."""
    arrays, start = {}, 0
    for name, parameter in parameters.items():
        arrays[name] = flat[start : start + parameter.size].reshape(parameter.shape).copy()
        start += parameter.size
    return arrays


def assign_flat(flat: Floats, parameters: Mapping[str, Parameter]) -> None:
    """Write a vector from `flatten` into the parameters."""
    for name, array in unflatten(flat, parameters).items():
        write(parameters[name], array)


def assign(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> None:
    """Write the arrays into the parameters of the same names. Raises ConfigError like `pick`."""
    _check(arrays, parameters)
    for name, parameter in parameters.items():
        write(parameter, arrays[name])


def pick(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Floats:
    """Concatenate the parameters' arrays. Raises ConfigError if one is missing or has another shape."""
    _check(arrays, parameters)
    return _concatenated([arrays[name].reshape(-1) for name in parameters])


def mean(rows: Sequence[Floats] | Floats) -> Floats:
    """Return the mean of rows (n, values): a single row unchanged, an empty vector if there are none."""
    if len(rows) == 0:
        return np.zeros(0, np.float32)
    found: Floats = rows[0] if len(rows) == 1 else np.sum(rows, axis=0) / np.float32(len(rows))
    return found


def all_finite(files: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if every number of a checkpoint's contents is finite."""
    return all(bool(np.isfinite(array).all()) for arrays in files.values() for array in arrays.values())


def _concatenated(pieces: Sequence[Floats]) -> Floats:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)  # all of BN may be frozen


def _check(arrays: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        if name not in arrays:
            raise ConfigError(f"the checkpoint is of another model: it has no parameter {name}")
        if arrays[name].shape != tuple(parameter.shape):
            ours, theirs = tuple(parameter.shape), arrays[name].shape
            raise ConfigError(f"the checkpoint is of another model: {name} has shape {theirs}, this job's has {ours}")
