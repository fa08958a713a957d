"""Reads scikit-learn's handwritten digits."""

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resnetboost_trainer import config
from resnetboost_trainer.data.sources.label_checks import check_classes
from resnetboost_trainer.data.sources.npz import Arrays
from resnetboost_trainer.failures import DataError

CLASSES = 10
WHITE = 16.0
# All jobs have the same test set, so no field sets this seed.
SPLIT_SEED = 0
TEST_ONE_IN = 5


def read(_: config.Dataset, classes: int) -> Arrays:
    """Read the 1797 digits, 8x8, values 0 to 16: 1437 to train on and 360 to test with."""
    check_classes("digits", CLASSES, classes)
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("digits: scikit-learn is not installed, and the digits are its data; install scikit-learn")
    # sklearn.datasets.load_digits reads the same file, but importing it takes 2.5 seconds on every rank.
    file = Path(spec.submodule_search_locations[0]) / "datasets/data/digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    test = stratified(labels, TEST_ONE_IN, SPLIT_SEED)
    return Arrays(images[~test], labels[~test], images[test], labels[test])


def stratified(labels: NDArray[np.uint8], one_in: int, seed: int) -> NDArray[np.bool_]:
    """Return the mask (n,) of every `one_in`-th sample, drawn at random and from every class alike."""
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.zeros(len(labels), np.bool_)
    chosen[by_class[::one_in]] = True
    return chosen
