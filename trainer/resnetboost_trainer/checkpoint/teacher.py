"""Reads the teacher of a stage (`stages[].distillation`): any trained network of this product's family.

Its content is untrusted, like that of pretrained weights. Only rank 0 reads it. Checkpoints have the hash of its file,
so that a restart goes on with the same teacher, although its run may have saved newer checkpoints since.
"""

import logging
from pathlib import Path

import msgspec

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer.checkpoint import fetched, trained
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.trained import Trained, Weights
from resnetboost_trainer.config import Config, Distillation, Environment
from resnetboost_trainer.data import preprocessing
from resnetboost_trainer.data.preprocessing import Preparation, UnknownScale, readable
from resnetboost_trainer.data.registry import Dataset
from resnetboost_trainer.failures import ConfigError

FIELD = "distillation.teacher"

log = logging.getLogger(__name__)


class Teacher(msgspec.Struct, frozen=True):
    """A trained network, and how it wants its input: images of the data set times `scale` plus `shift`, by channel."""

    network: Trained
    scale: tuple[float, ...]
    shift: tuple[float, ...]


def check(settings: Config, environment: Environment, dataset: Dataset) -> None:
    """Read the teacher before anything slow. Raises ConfigError if there is none, or one that does not fit."""
    if settings.distillation is not None and environment.index == 0:
        read(settings.distillation, dataset, settings.storage)


def read(distillation: Distillation, dataset: Dataset, storage: ObjectStorage, sha256: str = "") -> Teacher:
    """Read the teacher; with `sha256` the one whose file of weights has that hash. Raises ConfigError."""
    path = fetched.local(distillation.teacher, FIELD, storage)
    try:
        found = _read(path, distillation)
        if sha256 and found.sha256 != sha256:
            found = _same(path, sha256)
    except ConfigError as error:
        raise ConfigError(f"{FIELD}: {error}") from error
    _check(found, dataset)
    if found.preparation is None and dataset.preparation is not None and dataset.preparation.resize is None:
        reason = "does not record how its images were normalised, so it is given the data set's as they are"
        log.warning("%s: %s %s; name its checkpoint instead", FIELD, found.path, reason)
    try:
        scale, shift = _between(dataset.preparation, found.preparation, dataset.channels)
    except UnknownScale as problem:
        assert dataset.preparation is not None
        remedy = f"use a teacher that was trained on {dataset.preparation.numbers}"
        raise ConfigError(f"{FIELD}: {found.path}: {problem}; {remedy}") from None
    return Teacher(found, scale, shift)


def _read(path: Path, distillation: Distillation) -> Trained:
    return trained.read(path, chosen="best" if distillation.which == "Best" else None)


def _same(path: Path, sha256: str) -> Trained:
    """Find the checkpoint with that hash below a folder. Raises ConfigError."""
    kinds: dict[str, Weights] = {weightfile.AVERAGE: "averaged", weightfile.MODEL: "trained"}
    for kind in ("step", "best") if path.is_dir() else ():
        for manifest, place in weightfile.checkpoints(path, kind):
            for name, weights in kinds.items():
                if name in manifest.files and manifest.files[name].sha256 == sha256:
                    return trained.read(place, weights=weights)
    remedy = "restore its file, or begin again with a job of another name"
    raise ConfigError(f"this run began with another teacher than {path} has now (SHA-256 {sha256[:12]}...); {remedy}")


def _check(found: Trained, dataset: Dataset) -> None:
    """Raise ConfigError unless the teacher has the student's classes and channels."""
    network = found.network
    if network.classes != dataset.classes:
        reason = f"it is a {network}, and model.numClasses is {dataset.classes}"
        raise ConfigError(f"{FIELD}: {found.path}: {reason}; use a teacher of as many classes")
    if network.channels != dataset.channels:
        reason = f"it is a {network}, and the images have {dataset.channels}"
        raise ConfigError(f"{FIELD}: {found.path}: {reason}; use a teacher of as many channels")
    theirs = () if found.preparation is None else found.preparation.classes
    ours = () if dataset.preparation is None else dataset.preparation.classes
    if theirs and ours and theirs != ours:
        place = next((k for k, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), 0)
        reason = f"its class {place} is {readable(theirs[place])}, and the data set's is {readable(ours[place])}"
        raise ConfigError(f"{FIELD}: {found.path}: {reason}; use a teacher of the same classes")


def _between(
    ours: Preparation | None, theirs: Preparation | None, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the factor and the summand that turn images normalised our way into images normalised their way.

    Raises UnknownScale.
    """
    if ours is None or theirs is None:
        return (1.0,) * channels, (0.0,) * channels
    by = preprocessing.factor(theirs, ours)
    pairs = list(zip(ours.mean, ours.deviation, theirs.mean, theirs.deviation, strict=True))
    scale = tuple(deviation / by / their_deviation for _, deviation, _, their_deviation in pairs)
    shift = tuple((mean / by - their_mean) / their_deviation for mean, _, their_mean, their_deviation in pairs)
    return scale, shift
