"""The config map with the trainer's configuration file."""

from collections.abc import Sequence
from typing import Any

import yaml

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_api.status import RollBack
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.metadata import metadata
from resnetboost_operator.manifests.trainer_config import trainer_config

Manifest = dict[str, Any]


def config_map(job: Job, stage: Stage, attempt: int, roll_backs: Sequence[RollBack] = ()) -> Manifest:
    """The configuration file of an attempt's trainers. Immutable: an attempt's configuration never changes."""
    text = yaml.safe_dump(trainer_config(job, stage, attempt, roll_backs), sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, stage, attempt, names.config_map(job.name, job.uid, stage.name, attempt)),
        "immutable": True,
        "data": {names.CONFIG_KEY: text},
    }
