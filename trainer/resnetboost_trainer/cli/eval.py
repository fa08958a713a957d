"""`python -m resnetboost_trainer eval SOURCE`: accuracy and loss of a trained network over a test set."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from resnetboost_api.writing import without_nulls
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import trained
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.cli import evaluation_details, image_options
from resnetboost_trainer.cli import options as commandline
from resnetboost_trainer.data import registry
from resnetboost_trainer.data.preprocessing import Preparation, readable
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.failures import ConfigError, DataError
from resnetboost_trainer.storage import address

BATCH = 64


def main(words: Sequence[str]) -> int:
    """Evaluate, print the result and return the exit code."""
    arguments = parser().parse_args(words)
    return commandline.main("eval", lambda: _evaluate(arguments))


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    made = commandline.parser("eval", __doc__)
    made.add_argument(
        "--dataset", choices=image_options.DATASETS, help="the data set (default: the one it was trained on)"
    )
    made.add_argument("--path", help="where it is (default: where it was in training)")
    made.add_argument("--test-folder", help="of an ImageFolder, the folder to test with")
    made.add_argument(
        "--test-set",
        action="store_true",
        help="the data set's own test images, not those that validationSplit set apart",
    )
    made.add_argument("--image-size", type=int, help="side of the square that the network sees, in pixels")
    made.add_argument("--resize", type=int, help="length of the shorter side that it is cut out of")
    image_options.add_white(made)
    made.add_argument("--batch", type=int, default=BATCH, help=f"images at a time (default: {BATCH})")
    made.add_argument("--skip", type=int, default=0, help="number of unusable images to skip before failing")
    made.add_argument("--details", action="store_true", help="also by class: accuracy, confusion matrix, calibration")
    made.add_argument("--save", metavar="DIR", type=Path, help="write the details into files of this folder")
    made.add_argument(
        "--record", action="store_true", help="record the details with the checkpoint, for its model card"
    )
    made.add_argument("-o", "--output", choices=("text", "json"), default="text")
    commandline.add_device(made)
    return made


def _evaluate(arguments: argparse.Namespace) -> int:
    if arguments.record and address.is_address(arguments.source):
        raise ConfigError("--record: a checkpoint in object storage is not changed; use --save DIR")
    network = trained.read(arguments.source, arguments.model, arguments.weights, arguments.which)
    source = chosen(network, arguments)
    dataset = load(network, source, image_options.with_white(network, network.preparation, arguments.white))
    from resnetboost_trainer.checkpoint import inference
    from resnetboost_trainer.data.corrupt import Corrupt
    from resnetboost_trainer.distributed.communicator import Communicator
    from resnetboost_trainer.engine import device
    from resnetboost_trainer.engine.evaluator import Evaluation

    device.choose(arguments.device)
    batch = max(1, min(arguments.batch, len(dataset.test.labels)))
    corrupt = Corrupt(dataset.max_corrupt_images)
    evaluation = Evaluation(inference.network(network), dataset, Communicator(0, 1), batch, corrupt)
    started = time.perf_counter()
    details = None
    if arguments.details or arguments.save is not None or arguments.record:
        result, predictions = evaluation.run_with_predictions(lambda: None)
        details = evaluation_details.of(network, dataset, predictions)
    else:
        result = evaluation.run(lambda: None)
    evaluation.feed.close()
    facts = {
        "model": str(network.network),
        "checkpoint": str(network.path),
        "dataset": dataset.fingerprint,
        "trainedOn": network.manifest.dataset if network.manifest is not None else None,
        "validationSplit": source.validation_split,
        "images": len(dataset.test.labels) - corrupt.found,
        "skipped": corrupt.found,
        **msgspec.to_builtins(result),
        "seconds": time.perf_counter() - started,
    }
    if details is not None and arguments.record:
        facts["recorded"] = str(evaluation_details.record(network, details))
    if details is not None and arguments.save is not None:
        evaluation_details.save(arguments.save, details)
    if arguments.output == "json":
        commandline.show(facts | ({"details": msgspec.to_builtins(details)} if details is not None else {}))
    else:
        print(_as_text(network, facts))
        if details is not None:
            print(f"\n{evaluation_details.text(details)}")
    return 0


def chosen(network: Trained, arguments: argparse.Namespace) -> config.Dataset:
    """Return the data set of the training, with the options' overrides. Raises ConfigError."""
    known = _of_training(network)
    if known is None and arguments.dataset is None:
        reason = f"{network.path} does not say what it was trained on"
        raise ConfigError(f"--dataset: missing; {reason}; name one of {', '.join(image_options.DATASETS)}")
    if known is None or arguments.dataset not in (None, known.name):
        size, resize = _size(network)
        known = config.Dataset(name=arguments.dataset, image_size=size, evaluation_resize=resize)
    options = {
        "path": arguments.path,
        "test_folder": arguments.test_folder,
        "image_size": arguments.image_size,
        "evaluation_resize": arguments.resize,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if arguments.image_size is not None and arguments.resize is None:
        given["evaluation_resize"] = None
    if arguments.test_set or arguments.test_folder is not None:
        given["validation_split"] = None
    found = msgspec.structs.replace(known, **given, augmentation=config.PLAIN, max_corrupt_images=arguments.skip)
    return _alone(found) if found.name == "ImageFolder" else found


def _of_training(network: Trained) -> config.Dataset | None:
    """Return the checkpoint's data set; None if it has none or was written by a trainer with other fields."""
    recorded = network.manifest.config.get("dataset") if network.manifest is not None else None
    try:
        return None if recorded is None else msgspec.convert(without_nulls(recorded), config.Dataset)
    except msgspec.ValidationError:
        return None


def _size(network: Trained) -> tuple[int | None, int | None]:
    known = network.preparation
    return (known.width, known.resize) if known is not None and known.resize is not None else (None, None)


def _alone(dataset: config.Dataset) -> config.Dataset:
    """Use the test folder in place of a missing training folder: evaluation does not need the training images.

    With validationSplit it does: they contain the images to test with.
    """
    train = Path(dataset.path or "") / (dataset.train_folder or "train")
    if train.is_dir() or dataset.validation_split is not None:
        return dataset
    return msgspec.structs.replace(dataset, train_folder=dataset.test_folder or "val")


def load(network: Trained, dataset: config.Dataset, known: Preparation | None) -> Dataset:
    """Load the data, normalised by `known`, like the network's training data.

    Raises ConfigError, DataError if it does not fit.
    """
    found = registry.load(dataset, network.network.classes, known)
    image_options.check_channels(network, dataset.name, found.channels)
    names = found.preparation.classes if found.preparation is not None else ()
    if (
        registry.SOURCES[dataset.name].files is not None
        and known is not None
        and known.classes
        and names
        and names != known.classes
    ):
        place = next((k for k, pair in enumerate(zip(names, known.classes, strict=False)) if pair[0] != pair[1]), 0)
        difference = (
            f"class {place} is {readable(names[place])} there and {readable(known.classes[place])} in the checkpoint"
        )
        raise DataError(
            f"{dataset.path}: {difference}; labels would mean other things; use the same folders of classes"
        )
    return found


def has_same_tests(trained: str | None, found: str) -> bool:
    """Whether fingerprints of data sets name the same test images: of files nothing else is read here."""
    first, second = ((each.partition(":")[0], each.rpartition(":")[2]) for each in (trained or "", found))
    return first == second


def _as_text(network: Trained, facts: dict[str, Any]) -> str:
    same = has_same_tests(facts["trainedOn"], facts["dataset"])
    skipped = f", {facts['skipped']} unusable skipped" if facts["skipped"] else ""
    origin = "those of its training" if same else "not known to be those of its training"
    kind = "test" if facts["validationSplit"] is None else "validation"
    rows = {
        "network": network.describe(),
        "data": f"{facts['images']} {kind} images of {readable(facts['dataset'])}, {origin}{skipped}",
        "top-1": f"{facts['top1']:.2%}",
        "top-5": f"{facts['top5']:.2%}",
        "test loss": f"{facts['loss']:.4f}",
        "time": f"{facts['seconds']:.1f} s",
    }
    return "\n".join(f"{name:11}{value}" for name, value in rows.items())
