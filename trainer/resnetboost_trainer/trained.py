"""A network that was trained: found in a run's folder, a checkpoint or a file of weights, and held against the family.

Everything in it is untrusted. What is found is numbers and names; it needs no framework and runs nothing.
"""

import logging
from pathlib import Path

import msgspec

from resnetboost_trainer import checkpoint, family, fitting, weightfile
from resnetboost_trainer.checkpoint import Damaged, Manifest
from resnetboost_trainer.datasets.preparation import Preparation, readable
from resnetboost_trainer.fitting import Array, Network
from resnetboost_trainer.torchpickle import Refused
from resnetboost_trainer.verdict import ConfigError

# Below an attempt, a stage, a job, a folder of checkpoints, a run or a claim's volume in a run.
_STEPS = "attempt-*/step-*"
_BELOW = ("step-*", _STEPS, f"*/{_STEPS}", f"*/*/{_STEPS}", f"checkpoints/*/*/{_STEPS}", f"volumes/*/*/*/{_STEPS}")
_INPUT = "a run's folder, a checkpoint's, or a file of weights"

log = logging.getLogger(__name__)


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A network of the family with its `arrays` under our names; `manifest` is there where a checkpoint has one.

    `path` is the checkpoint's folder or the file; `sha256` is of the file of weights.
    """

    path: Path
    network: Network
    arrays: dict[str, Array]
    sha256: str
    manifest: Manifest | None = None

    @property
    def preparation(self) -> Preparation | None:
        """How pictures become its images, if the checkpoint says so."""
        return None if self.manifest is None else self.manifest.preparation

    def told(self) -> str:
        """What it is, in half a sentence."""
        if self.manifest is None:
            return f"{self.network}, {self.path.name}"
        stage, job = readable(self.manifest.stage), readable(self.manifest.job_name)
        return f"{self.network}, step {self.manifest.step} of stage {stage} of {job}"


def read(path: Path, model: str | None = None) -> Trained:
    """The file's network, the checkpoint's, or that of the newest whole checkpoint below the folder.

    `model` is what it has to be. Raises ConfigError, in one sentence.
    """
    if path.name == weightfile.MODEL and path.with_name(checkpoint.MANIFEST).is_file():
        path = path.parent
    if not path.is_dir():
        return _of_file(path, None, model)
    if (path / checkpoint.MANIFEST).is_file():
        try:
            return _of_file(path, checkpoint.told(path), model)
        except Damaged as damage:
            raise ConfigError(f"{path}: the checkpoint is damaged: {damage}") from damage
    if (path / weightfile.MODEL).is_file():
        return _of_file(path, None, model)
    return _newest(path, model)


def _newest(folder: Path, model: str | None) -> Trained:
    found = [place for below in _BELOW for place in folder.glob(below) if (place / checkpoint.MANIFEST).is_file()]
    told = []
    for place in found:
        try:
            told.append((checkpoint.told(place), place))
        except Damaged as damage:
            log.warning("%s is passed over: %s", place, damage)
    for manifest, place in sorted(told, key=lambda pair: (pair[0].written, pair[0].step), reverse=True):
        try:
            return _of_file(place, manifest, model)
        except Damaged as damage:
            log.warning("%s is passed over: %s", place, damage)
    raise ConfigError(f"{folder}: there is no whole checkpoint in it; name {_INPUT}")


def _of_file(path: Path, manifest: Manifest | None, model: str | None) -> Trained:
    """Raises ConfigError, or Damaged where the manifest tells of other bytes."""
    try:
        file = weightfile.read(path)
        if manifest is not None:
            _compare(manifest, file.sha256)
        fit = fitting.identify(file.arrays, file.layout, _names(manifest, model))
        if not fit.whole:
            told = (
                f"it is no {fit.network}" if model is not None else f"it is no network of the family ({fit.network}?)"
            )
            raise ConfigError(f"{path}: {told}: {fit.told()}")
        ours = fitting.renamed(file.arrays, file.layout, fit.network)
    except Refused as refused:
        if path.exists():
            raise ConfigError(f"{path}: {refused}") from refused
        raise ConfigError(f"{path}: there is nothing of that name; name {_INPUT}") from refused
    trained = Trained(path=path, network=fit.network, arrays=ours, sha256=file.sha256, manifest=manifest)
    _check_preparation(trained)
    return trained


def _compare(manifest: Manifest, sha256: str) -> None:
    known = manifest.files.get(weightfile.MODEL)
    if known is None or known.sha256 != sha256:
        raise Damaged(f"{weightfile.MODEL}: it is not the file that {checkpoint.MANIFEST} tells of")


def _names(manifest: Manifest | None, model: str | None) -> tuple[str, ...]:
    """Networks that it may be; all, if nobody says."""
    if model is not None:
        return (model,)
    name = "" if manifest is None else manifest.model.partition("/")[0]
    return (name,) if name in (*family.LARGE, *family.SMALL) else ()


def _check_preparation(trained: Trained) -> None:
    if trained.preparation is None:
        return
    problem = trained.preparation.problem(trained.network.channels, trained.network.classes)
    if problem:
        raise ConfigError(f"{trained.path}: {checkpoint.MANIFEST} is damaged: preparation: {problem}")
