"""Weights of the classes in a stage's loss (`stages[].loss`), and their mean over a step's global batch.

PyTorch's CrossEntropyLoss(weight=w) divides the weighted losses of a batch by the sum of its labels' weights. Here that
batch is the step's global batch, over all ranks and micro batches: which images fall to one rank changes nothing, and a
step with one rank equals PyTorch's. Labels of mixup and CutMix are shares of several classes, for which PyTorch divides
by the number of images, and so does this.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.failures import ConfigError

FIELD = "loss"
Floats = NDArray[np.float32]


def of(loss: config.Loss, labels: NDArray[np.int32] | None, classes: int) -> Floats | None:
    """Return the weight of each class (classes,), or None if all are equal; `labels` are the training images'.

    Raises ConfigError for weights that do not fit the classes, and for a class without images to balance.
    """
    if loss.class_weighting == "Balanced":
        assert labels is not None, "balanced weights are counted in the training images"
        return _balanced(labels, classes)
    return _given(loss.class_weights, classes) if loss.class_weights else None


def _given(weights: Sequence[float], classes: int) -> Floats:
    if len(weights) != classes:
        reason = f"{len(weights)} weights, and model.numClasses is {classes}"
        raise ConfigError(f"{FIELD}.classWeights: {reason}; give one for each class")
    if not any(weights):
        raise ConfigError(f"{FIELD}.classWeights: all are 0, so that nothing is learnt; give at least one above 0")
    return np.array(weights, np.float32)


def _balanced(labels: NDArray[np.int32], classes: int) -> Floats:
    """images / (classes x images of the class), as scikit-learn's class_weight="balanced"."""
    counts = np.bincount(labels, minlength=classes)
    without = np.flatnonzero(counts == 0)
    if without.size:
        reason = f"Balanced needs images of each class to train on, and class {without[0]} has none"
        raise ConfigError(f"{FIELD}.classWeighting: {reason}; lower model.numClasses, or give classWeights")
    found: Floats = (len(labels) / (classes * counts)).astype(np.float32)
    return found


def mean(weights: Floats, labels: NDArray[np.int32]) -> float:
    """Mean weight of a global batch's labels. Images that are replaced later, as unusable, count as planned.

    1 for a batch whose labels all have the weight 0, of which PyTorch's loss is not a number.
    """
    found = float(weights[labels].mean(dtype=np.float64))
    return found if found > 0 else 1.0
