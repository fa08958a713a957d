"""Warns when a stage continues from an earlier job's checkpoint with another learning rate schedule."""

import logging

import msgspec

from resnetboost_trainer.checkpoint.store import Manifest
from resnetboost_trainer.config import Config
from resnetboost_trainer.optim import schedule

log = logging.getLogger(__name__)


def warn(theirs: Manifest, ours: Manifest) -> None:
    """Log a warning if the steps of their checkpoint had other rates than this job's schedule gives them.

    A rate may be changed on purpose; but more epochs change every schedule that is laid out over them.
    """
    try:
        before, now = (msgspec.convert(manifest.config, Config) for manifest in (theirs, ours))
        step = schedule.first_other_rate(now, before, theirs.step, ours.steps_per_epoch)
        rates = [schedule.rate(config, step or 0, ours.steps_per_epoch) for config in (before, now)]
    except (msgspec.ValidationError, ArithmeticError, ValueError):
        return  # a manifest without a config, with fields that no longer exist, or with impossible numbers
    if step is not None:
        text = "those %d steps were made by another schedule: the learning rate of step %d was %g, and would be %g now"
        log.warning(f"{text}; from here on it is this job's", theirs.step, step + 1, *rates)
