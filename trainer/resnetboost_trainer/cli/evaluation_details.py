"""The details of an evaluation for `eval`: as tables of text, as files, and recorded beside a checkpoint."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from resnetboost_api import evaluation_details
from resnetboost_api.evaluation_details import ClassResult, EvaluationDetails
from resnetboost_trainer.checkpoint import model_card
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.data.preprocessing import readable
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.metrics import predictions as arithmetic
from resnetboost_trainer.metrics.predictions import Predictions

SHOWN_CLASSES = 20  # in a table of the terminal; of more only the worst, and the pairs most often confused
DENSE_CLASSES = 2000  # a larger matrix is written as its entries
_NAME_WIDTH = 24


def of(network: Trained, dataset: Dataset, found: Predictions) -> EvaluationDetails:
    """Compute the details from every image's prediction."""
    labels, predicted = np.asarray(dataset.test.labels)[found.counted], found.classes
    pairs = arithmetic.confusion(labels, predicted, network.network.classes)
    error, bins = arithmetic.calibration(found.confidences, labels == predicted)
    return EvaluationDetails(
        step=network.manifest.step if network.manifest is not None else None,
        averaged=network.averaged,
        dataset=dataset.fingerprint,
        images=len(labels),
        classes=arithmetic.by_class(pairs, _names(network, dataset)),
        confusion=tuple((int(actual), int(taken), int(images)) for actual, taken, images in pairs),
        calibration_error=error,
        bins=bins,
    )


def _names(network: Trained, dataset: Dataset) -> Sequence[str]:
    """The name of each class: the data set's, the checkpoint's, or its number."""
    known = [found.classes for found in (dataset.preparation, network.preparation) if found is not None]
    names = next((found for found in known if found), ())
    return [readable(names[k]) if k < len(names) else f"class {k}" for k in range(network.network.classes)]


def record(network: Trained, details: EvaluationDetails) -> Path:
    """Write the details into the checkpoint's folder, for report and model card. Raises ConfigError, OSError."""
    if network.manifest is None:
        raise ConfigError(f"--record: {network.path} is no checkpoint; use --save to write the details elsewhere")
    path = network.path / model_card.details_file(network.averaged)
    _write(path, details)
    return path


def save(folder: Path, details: EvaluationDetails) -> None:
    """Write evaluation.json, classes.csv and confusion.csv. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / evaluation_details.FILE, details)
    _write_csv(folder / "classes.csv", _class_rows(details.classes))
    _write_csv(folder / "confusion.csv", _confusion_rows(details))


def _write(path: Path, details: EvaluationDetails) -> None:
    """Replace the file atomically."""
    partial = path.with_name(f".{path.name}.new")
    partial.write_bytes(msgspec.json.encode(details))
    partial.replace(path)


def _write_csv(path: Path, rows: Iterator[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _class_rows(classes: Sequence[ClassResult]) -> Iterator[Sequence[object]]:
    yield "class", "name", "images", "recall", "precision"
    for number, found in enumerate(classes):
        yield number, found.name, found.images, found.recall, found.precision


def _confusion_rows(details: EvaluationDetails) -> Iterator[Sequence[object]]:
    """A row per class and a column per predicted class; of more than DENSE_CLASSES a row per entry."""
    names = [found.name for found in details.classes]
    if len(names) > DENSE_CLASSES:
        yield "class", "predicted", "images"
        yield from ((names[actual], names[taken], images) for actual, taken, images in details.confusion)
        return
    yield "", *names
    for name, row in zip(names, _dense(details), strict=True):
        yield name, *row


def _dense(details: EvaluationDetails) -> list[list[int]]:
    matrix = [[0] * len(details.classes) for _ in details.classes]
    for actual, taken, images in details.confusion:
        matrix[actual][taken] = images
    return matrix


def text(details: EvaluationDetails) -> str:
    """Tables for a terminal."""
    parts = [f"calibration error  {details.calibration_error:.4f} (expected, {evaluation_details.BINS} bins)"]
    parts.append(_class_table(details.classes))
    if len(details.classes) <= SHOWN_CLASSES:
        parts.append(_matrix(details))
    else:
        pairs = evaluation_details.most_confused(details, SHOWN_CLASSES)
        lines = [f"{_name(actual)}  {_name(taken)}  {images:>6}" for actual, taken, images in pairs]
        parts.append("\n".join(["most often confused: class, taken for, images", *lines]))
    return "\n\n".join(parts)


def _class_table(classes: Sequence[ClassResult]) -> str:
    shown = sorted(classes, key=_recall)[:SHOWN_CLASSES] if len(classes) > SHOWN_CLASSES else classes
    head = f"{'class':{_NAME_WIDTH}}  images   recall  precision"
    lines = [
        f"{_name(found.name)}  {found.images:6}  {_share(found.recall)}  {_share(found.precision):>9}"
        for found in shown
    ]
    rest = len(classes) - len(shown)
    return "\n".join([head, *lines, *([f"and {rest} classes with a higher recall; --save writes all"] if rest else [])])


def _recall(found: ClassResult) -> float:
    """The sort key of a class; one without images comes last."""
    return 2.0 if found.recall is None else found.recall


def _matrix(details: EvaluationDetails) -> str:
    """The confusion matrix: a row per class, a column per predicted class by its number."""
    rows = _dense(details)
    width = max(len(str(images)) for row in [*rows, [len(rows)]] for images in row) + 1
    head = f"{'class, taken for':{_NAME_WIDTH}} " + "".join(f"{number:{width}}" for number in range(len(rows)))
    lines = (
        f"{_name(f'{number} {found.name}')} " + "".join(f"{images or '.':>{width}}" for images in row)
        for number, (found, row) in enumerate(zip(details.classes, rows, strict=True))
    )
    return "\n".join([head, *lines])


def _name(name: str) -> str:
    return f"{name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + '…':{_NAME_WIDTH}}"


def _share(value: float | None) -> str:
    return "     -" if value is None else f"{value:7.2%}"
