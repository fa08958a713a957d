"""The copies of a job's checkpoints in the bucket of the tests' gateway, as its rank 0 sees them."""

from pathlib import Path
from typing import Any

import msgspec

from resnetboost_trainer import config
from resnetboost_trainer.checkpoint import remote
from resnetboost_trainer.checkpoint.remote import Remote
from support.trainerconfig import GOOD

URL = "s3://bucket/runs"
RETRY_SECONDS = 1


def settings(attempt: int = 1, **changes: Any) -> config.Config:
    checkpoint = GOOD["checkpoint"] | {"url": URL} | changes.pop("checkpoint", {})
    storage = {"retrySeconds": RETRY_SECONDS} | changes.pop("storage", {})
    return config.parse(GOOD | {"attempt": attempt, "checkpoint": checkpoint, "storage": storage} | changes)


def copies(root: Path, **changes: Any) -> Remote:
    found = remote.of(settings(**changes), root)
    assert found is not None
    return found


def prepare(root: Path, attempt: int = 1, index: int = 0, **changes: Any) -> None:
    environment = config.environment({"RESNETBOOST_CHECKPOINTS": str(root)})
    environment = msgspec.structs.replace(environment, index=index)
    remote.prepare(settings(attempt, **changes), environment)
