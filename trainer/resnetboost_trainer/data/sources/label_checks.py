"""Checks that the labels of a data set fit the data set and the network."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer.failures import ConfigError, DataError


def check_classes(name: str, has: int, num_classes: int) -> None:
    """Raise ConfigError if the network has fewer classes than the data set."""
    if num_classes < has:
        raise ConfigError(f"model.numClasses: {num_classes} is too few for {name}; use at least {has}")


def checked(path: Path, labels: NDArray[np.uint8], classes: int) -> NDArray[np.uint8]:
    """Return the labels of a file. Raises DataError if one is not below `classes`."""
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise DataError(
            f"{path}: label {labels[wrong[0]]} of sample {wrong[0]} is not one of 0 to {classes - 1};"
            " is it a file of this data set?"
        )
    return labels
