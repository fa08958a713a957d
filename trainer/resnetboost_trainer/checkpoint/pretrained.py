"""Reads pretrained weights (`model.weights`) from a file or run when a job's first stage starts.

Their content is untrusted. Only rank 0 reads it, once; afterwards the job resumes from its own checkpoints, which
record the fingerprint of the file.
"""

import hashlib
import logging
from pathlib import Path
from typing import NamedTuple

from resnetboost_api.storage import ObjectStorage
from resnetboost_trainer.checkpoint import fetched, state_dict, store
from resnetboost_trainer.checkpoint.formats import weights as weightfile
from resnetboost_trainer.checkpoint.formats.torch_pickle import Refused
from resnetboost_trainer.checkpoint.state_dict import Array, Fit, Network
from resnetboost_trainer.config import Config, Environment, Model, Weights
from resnetboost_trainer.failures import ConfigError

FIELD = "model.weights.path"
HERE = ObjectStorage()

log = logging.getLogger(__name__)


class Read(NamedTuple):
    """Pretrained weights under our names, the file's fingerprint, and its lineage if it belongs to a checkpoint."""

    arrays: dict[str, Array]
    fingerprint: str
    lineage: int | None


def of_stage(config: Config) -> Weights | None:
    """Return `model.weights` of a stage without `startFrom`; other stages take their weights from there."""
    return config.model.weights if config.start_from is None else None


def check(config: Config, environment: Environment, channels: int) -> None:
    """Check the weights file before anything slow. Raises ConfigError if this attempt needs it and it does not fit."""
    weights, root = of_stage(config), environment.checkpoints
    if weights is None or environment.index != 0:
        return
    if config.checkpoint.resume != "Never":
        return  # a checkpoint may make the file unnecessary; `read` raises the same error
    if root is None or not store.candidates(root, config.job.uid, config.stage, config.attempt):
        read(config.model, weights, channels, config.storage)


def read(model: Model, weights: Weights, channels: int, storage: ObjectStorage = HERE) -> Read:
    """Read the file's arrays, without the head's if `weights.head` is New. Raises ConfigError."""
    head = weights.head == "Keep"
    path = fetched.local(weights.path, FIELD, storage)
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


def fingerprint(weights: Weights, storage: ObjectStorage = HERE) -> str:
    """Return the fingerprint of the weights file and its options, or "" if the file no longer exists."""
    try:
        data = weightfile.found(fetched.local(weights.path, FIELD, storage))[1]
    except (Refused, ConfigError):
        return ""
    return _fingerprint(hashlib.sha256(data).hexdigest(), weights)


def _fingerprint(sha256: str, weights: Weights) -> str:
    return f"{sha256}/{weights.head}"


def check_same(weights: Weights, begun_with: str, of_this_job: bool, storage: ObjectStorage = HERE) -> None:
    """Compare the weights file with the fingerprint of the one that a resumed run started from.

    Raises ConfigError if an earlier job's run started from another file. Only logs a warning for this job's own run,
    and for a folder, which may contain newer checkpoints by now.
    """
    now, path = fingerprint(weights, storage), Path(weights.path)
    if now and now != begun_with:
        if not of_this_job and (not path.is_dir() or (path / weightfile.MODEL).exists()):
            remedy = "restore that file, or set checkpoint.resume to Never to start over"
            raise ConfigError(f"{FIELD}: the earlier job's run began with other weights than {weights.path}; {remedy}")
        log.warning("%s: %s is another file than this run began with; it is not read", FIELD, weights.path)


def _refusal(weights: Weights, fit: Fit, best: Fit) -> str:
    """Return the error message: which network the file holds, if any, and the remedy."""
    expected = fit.network
    if not best.whole:
        return f"{FIELD}: {weights.path} is no {expected}: {fit.describe()}"
    reason = f"{FIELD}: {weights.path} is a {best.network}, and the job's is a {expected}"
    if best.network.name != expected.name:
        return f"{reason}; set model.name to {best.network.name}, or use another file"
    if best.network.channels != expected.channels:
        return f"{reason}; use images or weights of as many channels"
    return f"{reason}; set model.weights.head to New, or use another file"
