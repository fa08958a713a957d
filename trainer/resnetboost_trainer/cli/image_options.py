"""Selects the preprocessing of a network's input images: from options, the checkpoint, or torchvision's default."""

import argparse
import math
from pathlib import Path
from typing import get_args

import msgspec

from resnetboost_api.dataset import DatasetName
from resnetboost_trainer import config
from resnetboost_trainer.checkpoint.trained import Trained
from resnetboost_trainer.data import preprocessing, registry
from resnetboost_trainer.data.preprocessing import Preparation
from resnetboost_trainer.data.recipe import IMAGE_SIZE
from resnetboost_trainer.data.sources import class_names
from resnetboost_trainer.data.transforms import Evaluated
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch

DATASETS: tuple[str, ...] = get_args(DatasetName)


def add_options(made: argparse.ArgumentParser) -> None:
    """Add the options for preprocessing, which a checkpoint records and a file of weights does not."""
    made.add_argument("--dataset", choices=DATASETS, help="prepare pictures as this data set's images")
    made.add_argument("--path", help="where that data set is")
    made.add_argument("--image-size", type=int, help="side of the square that the network sees, in pixels")
    made.add_argument("--resize", type=int, help="length of the shorter side that it is cut out of")
    add_white(made)
    made.add_argument("--classes", metavar="FILE", type=Path, help="names of the classes, one on each line, in order")


def add_white(made: argparse.ArgumentParser) -> None:
    """Add the option for what a network's training images do not say themselves."""
    made.add_argument("--white", type=float, help="the number of a white pixel in its training images, if not known")


def with_white(trained: Trained, found: Preparation | None, white: float | None) -> Preparation | None:
    """Return the preparation with the option --white. Raises ConfigError if it makes no sense."""
    if white is None:
        return found
    if not (math.isfinite(white) and white > 0):
        raise ConfigError(f"--white: {white:g} is not the number of a white pixel; give one above 0")
    if found is None or found.resize is not None:
        reason = "does not record how its images were normalised" if found is None else "was trained on photographs"
        raise ConfigError(f"--white: {trained.path} {reason}; leave it out")
    return msgspec.structs.replace(found, white=white, white_guessed=False, values=found.values or "Floats")


def check_pictures(trained: Trained, found: Preparation) -> None:
    """Raise ConfigError if pictures cannot be prepared for this network."""
    if trained.network.channels not in (1, 3):
        raise ConfigError(f"{trained.path}: {trained.network} takes no pictures, which have 1 or 3 channels; use eval")
    if found.white_guessed:
        raise ConfigError(f"{trained.path}: {preprocessing.white_unknown(found)}; say it with --white")


def choose(trained: Trained, arguments: argparse.Namespace) -> Preparation:
    """Return the preprocessing from the options, the checkpoint, or torchvision. Raises ConfigError, DataError."""
    found = _of_dataset(trained, arguments) if arguments.dataset is not None else trained.preparation
    if found is None:
        found = _usual(trained)
    if arguments.image_size is not None or arguments.resize is not None:
        found = _sized(found, arguments.image_size, arguments.resize)
    found = with_white(trained, found, arguments.white) or found
    if arguments.classes is not None:
        found = msgspec.structs.replace(found, classes=_names(arguments.classes, trained.network.classes))
    problem = found.problem(trained.network.channels, trained.network.classes)
    if problem:
        raise ConfigError(f"{trained.path}: {trained.network} cannot be given {problem}")
    return found


def _of_dataset(trained: Trained, arguments: argparse.Namespace) -> Preparation:
    chosen = config.Dataset(name=arguments.dataset, path=arguments.path, image_size=arguments.image_size)
    found = registry.load(chosen, trained.network.classes)
    check_channels(trained, chosen.name, found.channels)
    assert found.preparation is not None
    return found.preparation


def check_channels(trained: Trained, dataset: str, channels: int) -> None:
    """Raise ConfigError if the data set's images and the network differ in their number of channels."""
    if channels != trained.network.channels:
        plural = "s" if channels != 1 else ""
        reason = f"{trained.path} is {trained.network}, and those of {dataset} have {channels} channel{plural}"
        raise ConfigError(f"--dataset: {reason}; use another data set or network")


def _usual(trained: Trained) -> Preparation:
    """Return torchvision's preprocessing for its networks. Raises ConfigError for others, which have no default."""
    if trained.network.name in arch.LARGE and trained.network.channels == 3:
        return preprocessing.of_photographs(Evaluated(IMAGE_SIZE, IMAGE_SIZE * 8 // 7))
    reason = f"{trained.path} does not say how its images were prepared, and {trained.network.name} has no usual way"
    raise ConfigError(f"{reason}; name the data set it was trained on with --dataset (and --path)")


def _sized(found: Preparation, size: int | None, resize: int | None) -> Preparation:
    size = size or found.width
    if found.resize is None:
        if resize is not None:
            raise ConfigError(f"--resize: {resize} is for photographs; this network's pictures are not cut")
        return msgspec.structs.replace(found, width=size, height=size)
    resize = resize or max(size * found.resize // found.width, size)
    return msgspec.structs.replace(found, width=size, height=size, resize=resize)


def _names(path: Path, classes: int) -> tuple[str, ...]:
    names = class_names.read(path)
    if len(names) != classes:
        problem = f"it has {len(names)} lines of text, and the network has {classes} classes"
        raise ConfigError(f"--classes: {path}: {problem}; give a name on each line")
    return preprocessing.named(names)
