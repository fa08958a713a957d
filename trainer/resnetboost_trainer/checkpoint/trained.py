"""Loads a trained network from a run's folder, a checkpoint or a file of weights.

The files are untrusted: only numbers and names are read, nothing is executed. MindSpore is not needed.
"""

import logging
from pathlib import Path
from typing import Literal

import msgspec

from resnetboost_trainer.checkpoint import fetched, state_dict, store, which
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from resnetboost_trainer.checkpoint.formats.weights import File
from resnetboost_trainer.checkpoint.state_dict import Array, Network
from resnetboost_trainer.checkpoint.store import Damaged, Manifest
from resnetboost_trainer.data import preprocessing
from resnetboost_trainer.data.preprocessing import Preparation, readable
from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.models import arch
from resnetboost_trainer.storage import address

_INPUT = "a run's folder, a checkpoint's, or a file of weights"

# A checkpoint may contain an average of the weights beside the trained ones.
Weights = Literal["averaged", "trained"]

log = logging.getLogger(__name__)


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained ResNet: its `arrays` under our names, and the checkpoint's `manifest`, if it has one.

    `path` is the checkpoint's folder or the file; `sha256` is the hash of the file of (possibly averaged) weights.
    """

    path: Path
    network: Network
    arrays: dict[str, Array]
    sha256: str
    averaged: bool = False
    manifest: Manifest | None = None

    @property
    def preparation(self) -> Preparation | None:
        """Preprocessing of the network's input images, if the checkpoint records it."""
        if self.manifest is None or self.manifest.preparation is None:
            return None
        return preprocessing.of_earlier(self.manifest.preparation, self.manifest.dataset.partition(":")[0])

    def describe(self) -> str:
        """Describe the network and its origin in a phrase."""
        if self.manifest is None:
            return f"{self.network}, {self.path.name}"
        stage, job = readable(self.manifest.stage), readable(self.manifest.job_name)
        averaged = ", averaged weights" if self.averaged else ""
        mark = self.manifest.best
        best = f", the best by {mark.metric} ({mark.value:.6g})" if mark is not None and mark.value is not None else ""
        return f"{self.network}, step {self.manifest.step} of stage {stage} of {job}{best}{averaged}"


def read(
    source: str | Path, model: str | None = None, weights: Weights | None = None, chosen: str | None = None
) -> Trained:
    """Load the network of a file, of a checkpoint, or of an intact one below a folder or an address: the newest, or the
    `chosen` one.

    `model` is the required network; `weights` selects a checkpoint's weights (default: averaged, if it has them);
    `chosen` is the option --which. Raises ConfigError.
    """
    if chosen is not None:
        which.check(chosen)
    if chosen == "averaged" and weights == "trained":
        raise ConfigError("--which averaged: --weights trained asks for the other ones; leave one of them out")
    if isinstance(source, str) and address.is_address(source):
        found = fetched.local(source, "SOURCE", chosen=chosen or "last")
        return read(found, model, "averaged" if chosen == "averaged" else weights)
    path = Path(source)
    if chosen is not None and (
        not path.is_dir() or (path / store.MANIFEST).is_file() or (path / weightfile.MODEL).is_file()
    ):
        raise ConfigError(f"--which {chosen}: it selects a checkpoint of a folder, and {path} is one; leave it out")
    if path.name == weightfile.MODEL and path.with_name(store.MANIFEST).is_file():
        path = path.parent
    if not path.is_dir():
        return _of_weights(path, model, weights)
    if (path / store.MANIFEST).is_file():
        try:
            return _of_checkpoint(path, store.load_manifest(path), model, weights)
        except Damaged as damage:
            raise ConfigError(f"{path}: the checkpoint is damaged: {damage}") from damage
    if (path / weightfile.MODEL).is_file():
        return _of_weights(path, model, weights)
    return _first_intact(path, model, "averaged" if chosen == "averaged" else weights, chosen or "last")


def _first_intact(folder: Path, model: str | None, weights: Weights | None, chosen: str) -> Trained:
    for manifest, place in which.checkpoints(folder, chosen):
        try:
            return _of_checkpoint(place, manifest, model, weights)
        except Damaged as damage:
            log.warning("%s is skipped: %s", place, damage)
    raise ConfigError(f"{folder}: there is no complete checkpoint in it; {weightfile.there(folder)}; name {_INPUT}")


def _of_checkpoint(path: Path, manifest: Manifest, model: str | None, weights: Weights | None) -> Trained:
    """Load a checkpoint's network. Raises ConfigError, or Damaged if a file does not match the manifest."""
    averaged = weights != "trained" and weightfile.AVERAGE in manifest.files
    if weights == "averaged" and not averaged:
        raise ConfigError(f"{path}: its job kept no average of the weights; use those that were trained")
    name = weightfile.AVERAGE if averaged else weightfile.MODEL
    if name not in manifest.files:
        raise Damaged(f"{store.MANIFEST}: it lists no {name}")
    sha256 = manifest.files[name].sha256
    try:
        network, arrays = _fitted(weightfile.read(path / name, sha256), _names(manifest, model))
    except Refused as refused:
        raise Damaged(f"{name}: {refused}") from refused
    found = Trained(path=path, network=network, arrays=arrays, sha256=sha256, averaged=averaged, manifest=manifest)
    _check_preparation(found)
    return found


def _of_weights(path: Path, model: str | None, weights: Weights | None) -> Trained:
    """Load the network of a file of weights. Raises ConfigError."""
    if weights == "averaged":
        raise ConfigError(f"{path}: it is no checkpoint with an average of the weights; leave out --weights")
    try:
        file = weightfile.read(path)
        network, arrays = _fitted(file, _names(None, model))
    except Refused as refused:
        if path.exists():
            raise ConfigError(f"{path}: {refused}") from refused
        raise ConfigError(f"{path}: {refused}; name {_INPUT}") from refused
    return Trained(path=path, network=network, arrays=arrays, sha256=file.sha256)


def _fitted(file: File, names: tuple[str, ...]) -> tuple[Network, dict[str, Array]]:
    """Identify the network of a file and return it with its arrays under our names. Raises ConfigError, Refused."""
    fit = state_dict.identify(file.arrays, file.layout, names)
    if not fit.whole:
        nearest = "" if len(names) == 1 else ", the nearest of the family"
        raise ConfigError(f"{file.path}: it is no {fit.network}{nearest}: {fit.describe()}")
    return fit.network, state_dict.renamed(file.arrays, file.layout, fit.network)


def _names(manifest: Manifest | None, model: str | None) -> tuple[str, ...]:
    """Return the names of the possible networks: the option's or the manifest's, or () for any."""
    if model is not None:
        return (model,)
    name = "" if manifest is None else manifest.model.partition("/")[0]
    return (name,) if name in (*arch.LARGE, *arch.SMALL) else ()


def _check_preparation(trained: Trained) -> None:
    if trained.preparation is None:
        return
    problem = trained.preparation.problem(trained.network.channels, trained.network.classes)
    if problem:
        raise ConfigError(f"{trained.path}: {store.MANIFEST} is damaged: preparation: {problem}")
