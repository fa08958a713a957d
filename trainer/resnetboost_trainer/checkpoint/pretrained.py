"""The file or run that `model.weights` names: read once, as a job's first stage begins; then its weights are the job's.

Its content is untrusted. Rank 0 alone reads it. A checkpoint notes of which bytes its run is.
"""

import hashlib
import logging
from pathlib import Path
from typing import NamedTuple

from resnetboost_trainer.checkpoint import state_dict, store
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from resnetboost_trainer.checkpoint.state_dict import Array, Fit, Network
from resnetboost_trainer.config import Config, Environment, Model, Weights
from resnetboost_trainer.failures import ConfigError

FIELD = "model.weights.path"

log = logging.getLogger(__name__)


class Read(NamedTuple):
    """What was read: arrays under our names, its fingerprint, and the lineage of a checkpoint that it is of."""

    arrays: dict[str, Array]
    fingerprint: str
    lineage: int | None


def of_stage(config: Config) -> Weights | None:
    """What this stage takes its first weights from, unless it has begun already: later stages have others."""
    return config.model.weights if config.start_from is None else None


def check(config: Config, environment: Environment, channels: int) -> None:
    """Raise ConfigError for a file that this attempt will need and that does not fit; before anything slow."""
    weights, root = of_stage(config), environment.checkpoints
    if weights is None or environment.index != 0:
        return
    if config.checkpoint.resume != "Never":
        return  # maybe nobody needs it; `read` will say the same
    if root is None or not store.candidates(root, config.job.uid, config.stage, config.attempt):
        read(config.model, weights, channels)


def read(model: Model, weights: Weights, channels: int) -> Read:
    """The file's arrays, without those of the head if it is to be new. Raises ConfigError."""
    path, head = Path(weights.path), weights.head == "Keep"
    try:
        file = weightfile.read(path)
        if file.path != path:
            log.info("%s: %s, of its checkpoints %s", FIELD, path, file.path.parent)
        fit = state_dict.fit(file.arrays, file.layout, Network(model.name, model.num_classes, channels), head)
        if not fit.whole:
            raise ConfigError(_refusal(weights, fit, state_dict.identify(file.arrays, file.layout)))
        arrays = state_dict.renamed(file.arrays, file.layout, fit.network, head)
        lineage = None if file.of is None else file.of.lineage
        return Read(arrays, _fingerprint(file.sha256, weights), lineage)
    except Refused as refused:
        raise ConfigError(f"{FIELD}: {path}: {refused}") from refused


def fingerprint(weights: Weights) -> str:
    """Of what the weights are; empty where there is no file any more."""
    try:
        data = weightfile.found(Path(weights.path))[1]
    except Refused:
        return ""
    return _fingerprint(hashlib.sha256(data).hexdigest(), weights)


def _fingerprint(sha256: str, weights: Weights) -> str:
    return f"{sha256}/{weights.head}"


def check_same(weights: Weights, begun_with: str, of_this_job: bool) -> None:
    """Compare the file with the one that a run that goes on began with, by that one's fingerprint.

    Raises ConfigError when an earlier job's run began with another file. Of this job's own run it is only said, and of
    a folder that may have got newer checkpoints since.
    """
    now, path = fingerprint(weights), Path(weights.path)
    if now and now != begun_with:
        if not of_this_job and (not path.is_dir() or (path / weightfile.MODEL).exists()):
            remedy = "restore that file, or set checkpoint.resume to Never to begin afresh"
            raise ConfigError(f"{FIELD}: the earlier job's run began with other weights than {weights.path}; {remedy}")
        log.warning("%s: %s is another file than this run began with; it is not read", FIELD, weights.path)


def _refusal(weights: Weights, fit: Fit, best: Fit) -> str:
    """What the file is instead, if it is anything, and what to do about it."""
    wanted = fit.network
    if not best.whole:
        return f"{FIELD}: {weights.path} is no {wanted}: {fit.told()}"
    told = f"{FIELD}: {weights.path} is a {best.network}, and the job's is a {wanted}"
    if best.network.name != wanted.name:
        return f"{told}; set model.name to {best.network.name}, or use another file"
    if best.network.channels != wanted.channels:
        return f"{told}; use images or weights of as many channels"
    return f"{told}; set model.weights.head to New, or use another file"
