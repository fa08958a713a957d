"""Sends the model card of a finished stage to the trackers."""

import logging

from resnetboost_trainer.checkpoint import model_card, trained
from resnetboost_trainer.config import Config, Environment
from resnetboost_trainer.failures import TrainingError
from resnetboost_trainer.tracking.tracking import Tracking

_NAME = "model-card.md"

log = logging.getLogger(__name__)


def save(tracking: Tracking, config: Config, environment: Environment) -> None:
    """Write the card beside the stage's attempts and send it. A failure must not spoil the result of the training."""
    if environment.checkpoints is None:
        return
    folder = environment.checkpoints / config.job.uid / config.stage
    try:
        network = trained.read(folder)
        (folder / _NAME).write_text(model_card.text(model_card.facts(network, network.preparation)), encoding="utf-8")
    except (OSError, TrainingError) as error:
        log.warning("no model card for the trackers: %s", error)
        return
    tracking.save(f"{config.stage}/{_NAME}", folder / _NAME)
