"""The details of an evaluation by class, in a file that the trainer writes beside a checkpoint and the report reads."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from resnetboost_api.fields import Reported

BINS = 15  # of the calibration error, as in Guo et al. 2017
FILE = "evaluation.json"
MAX_BYTES = 1 << 27  # of the file
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class ClassResult(Reported, frozen=True, omit_defaults=False):
    """The result of one class; a share is None where nothing is divided."""

    name: Annotated[str, Meta(max_length=1024)]
    """Name of the class."""
    images: _Count
    """Test images of the class."""
    recall: _Share | None
    """Share of its images that were taken for it: the accuracy of the class."""
    precision: _Share | None
    """Share of the images taken for it that are of the class."""


class Bin(Reported, frozen=True, omit_defaults=False):
    """The images whose highest probability is in one of the equal ranges between 0 and 1."""

    images: _Count
    """Their number."""
    confidence: _Share | None
    """Mean of their highest probabilities."""
    accuracy: _Share | None
    """Share of them that were right."""


class EvaluationDetails(Reported, frozen=True, omit_defaults=False):
    """An evaluation by class. Every test image counts once."""

    step: _Count | None
    """Step of the checkpoint."""
    averaged: bool
    """Whether its averaged weights were evaluated."""
    dataset: Annotated[str, Meta(max_length=4096)]
    """Fingerprint of the data set."""
    images: _Count
    """Test images."""
    classes: Annotated[tuple[ClassResult, ...], Meta(max_length=100_000)]
    """The results of the classes, by number."""
    confusion: tuple[tuple[_Count, _Count, _Count], ...]
    """The confusion matrix without its zeros: class, predicted class and number of images."""
    calibration_error: _Share
    """Expected calibration error: the mean distance of confidence and accuracy in the bins, weighted by images."""
    bins: Annotated[tuple[Bin, ...], Meta(max_length=1000)]
    """The bins of the calibration error, by confidence."""


_decoder = msgspec.json.Decoder(EvaluationDetails)


def decode(data: bytes) -> EvaluationDetails:
    """Decode a file. Raises ValueError for one that is damaged or names a class that it does not have."""
    found = _decoder.decode(data)
    count = len(found.classes)
    if any(actual >= count or predicted >= count for actual, predicted, _ in found.confusion):
        raise ValueError("the confusion matrix names an unknown class")
    return found


def most_confused(details: EvaluationDetails, count: int) -> Sequence[tuple[str, str, int]]:
    """The pairs of class and wrongly predicted class with the most images."""
    wrong = sorted((found for found in details.confusion if found[0] != found[1]), key=lambda found: -found[2])
    names = [found.name for found in details.classes]
    return [(names[actual], names[predicted], images) for actual, predicted, images in wrong[:count]]
