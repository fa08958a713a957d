"""Evaluation by class: equal to scikit-learn's figures, and the same on any number of ranks."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.calibration import calibration_curve

from resnetboost_trainer.data import sampler
from resnetboost_trainer.failures import NumericsError
from resnetboost_trainer.metrics import predictions as arithmetic
from resnetboost_trainer.metrics.predictions import Predictions
from support.examples import examples


def logits(n: int, classes: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, (n, classes)).astype(np.float32)


def gathered(
    values: NDArray[np.float32], ranks: int, batch: int, unusable: frozenset[int] = frozenset()
) -> Predictions:
    """What each rank of a gang of that size has after it evaluated its share of the images and met the others."""
    own = []
    for rank in range(ranks):
        found = Predictions(len(values))
        for indices, mask in sampler.evaluation_slices(len(values), ranks, rank, batch):
            usable = np.array([index not in unusable for index in indices], np.float32)
            found.add(indices, mask * usable, values[indices])
        own.append(found)
    total = np.sum([found._found.reshape(-1) for found in own], 0, dtype=np.float32)
    own[-1].gather(lambda _: total)
    return own[-1]


@examples(100)
@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 9), st.frozensets(st.integers(0, 59), max_size=5))
def test_every_image_counts_once_on_any_number_of_ranks(
    n: int, ranks: int, batch: int, unusable: frozenset[int]
) -> None:
    values = logits(n, 5)
    usable = [index for index in range(n) if index not in unusable]
    found = gathered(values, ranks, batch, unusable)
    assert np.flatnonzero(found.counted).tolist() == usable
    np.testing.assert_array_equal(found.classes, values[usable].argmax(1))
    shares = np.exp(values[usable].astype(np.float64))
    expected = (shares / shares.sum(1, keepdims=True)).max(1, initial=0).astype(np.float32)
    np.testing.assert_allclose(found.confidences, expected, rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 10, 300], ids=str)
def test_classes_and_pairs_are_scikit_learns(classes: int) -> None:
    """Of 300 classes many have no image or no prediction."""
    generator = np.random.default_rng(1)
    labels, predicted = (generator.integers(0, classes, 400) ** 2 // classes for _ in range(2))
    pairs, names = arithmetic.confusion(labels, predicted, classes), [str(number) for number in range(classes)]
    matrix = np.zeros((classes, classes), np.int64)
    matrix[pairs[:, 0], pairs[:, 1]] = pairs[:, 2]
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(labels, predicted, labels=range(classes)))
    found = arithmetic.by_class(pairs, names)
    figures = metrics.precision_recall_fscore_support(labels, predicted, labels=range(classes), zero_division=np.nan)
    precision, recall, _, images = figures
    assert [result.images for result in found] == images.tolist()
    for ours, theirs in (("recall", recall), ("precision", precision)):
        values = [getattr(result, ours) for result in found]
        assert [np.nan if value is None else value for value in values] == pytest.approx(theirs, nan_ok=True)
        assert all(value is None or not np.isnan(expected) for value, expected in zip(values, theirs, strict=True))


def test_the_calibration_error_is_that_of_scikit_learns_bins() -> None:
    generator = np.random.default_rng(2)
    confidences = np.concatenate([generator.uniform(0.1, 1, 1000), np.arange(1, 16) / 15, [1.0]])
    right = generator.uniform(size=len(confidences)) < confidences**2
    error, bins = arithmetic.calibration(confidences, right)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accuracy, confidence = calibration_curve(right, confidences, n_bins=15, strategy="uniform")
    known = [found for found in bins if found.images]
    assert [found.accuracy for found in known] == pytest.approx(accuracy)
    assert [found.confidence for found in known] == pytest.approx(confidence)
    weights = np.array([found.images for found in known]) / len(confidences)
    assert error == pytest.approx(float(np.abs(accuracy - confidence) @ weights))
    assert error > 0.1
    assert sum(found.images for found in bins) == len(confidences)


def test_probabilities_that_are_right_have_no_error() -> None:
    right = np.arange(1000) % 4 != 0
    assert arithmetic.calibration(np.full(1000, 0.75), right)[0] == pytest.approx(0)
    assert arithmetic.calibration(np.ones(10), np.zeros(10, np.bool_))[0] == 1


def test_of_equal_outputs_the_first_class_is_predicted() -> None:
    found = Predictions(1)
    found.add(np.array([0]), np.ones(1, np.float32), np.array([[1, 3, 3]], np.float32))
    assert found.classes.tolist() == [1]


def test_outputs_that_are_not_finite_are_an_error_unless_they_are_padding() -> None:
    values = np.array([[1, np.nan], [1, 2]], np.float32)
    found = Predictions(2)
    found.add(np.array([0, 1]), np.array([0, 1], np.float32), values)
    assert found.classes.tolist() == [1]
    with pytest.raises(NumericsError, match="outputs for the test images are not finite"):
        found.add(np.array([0, 1]), np.ones(2, np.float32), values)
