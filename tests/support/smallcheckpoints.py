"""Checkpoints of a few numbers in the trainer's layout, for tests of lookup and pruning."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from resnetboost_trainer.checkpoint import snapshots, store
from resnetboost_trainer.checkpoint.store import Arrays, Kind, Manifest

MODEL = "model.safetensors"
CONTENTS: dict[str, Arrays] = {MODEL: {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}}

FIRST = Manifest(
    job_uid="uid",
    job_namespace="default",
    job_name="digits",
    stage="base",
    attempt=0,
    step=0,
    steps_per_epoch=22,
    seed=0,
    world_size=1,
    local_batch_size=64,
    model="resnet20/10/1",
    dataset="digits",
)


def manifest(step: int, **changes: Any) -> Manifest:
    return msgspec.structs.replace(FIRST, step=step, **changes)


def save(root: Path, step: int, contents: dict[str, Arrays] = CONTENTS, **changes: Any) -> Path:
    """Save a checkpoint of that step; `changes` are to its manifest."""
    ours = manifest(step, **changes)
    directory = store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt)
    return store.write(directory, ours, contents)[0]


def keep(root: Path, step: int, kind: Kind = "snapshot", numbers: int = 6, **changes: Any) -> Path:
    """Save a snapshot whose numbers all equal the step."""
    ours = manifest(step, **{"layout": "of six"} | changes)
    directory = store.attempt_directory(root, ours.job_uid, ours.stage, ours.attempt)
    return store.write(directory, ours, snapshots.contents(np.full(numbers, step, np.float32)), kind)[0]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
