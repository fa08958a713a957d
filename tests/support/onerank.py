"""A gang of one: runs the trainer process on the digits in its own folder; 44 steps in a few seconds."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from resnetboost_operator.cli import job_file
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from support import forkserver, sharedgraphs

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 44


def start(
    folder: Path,
    attempt: int,
    uid: str = "uid",
    example: str = "digits",
    changes: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    spawned: bool = False,
    **checkpoint: Any,
) -> subprocess.Popen[bytes]:
    """Start an attempt in the folder, with an example's job and `changes` to it as for `--set`.

    `config` replaces the trainer's config file; `checkpoint` changes its checkpoint settings (by default all are kept).
    `spawned`: start it as a container does, so that the process is the rank itself.
    """
    job = parse_job(job_file.load(EXAMPLES / f"{example}.yaml", ["stages[0].epochs=2", *changes]))
    settings = trainer_config(job, job.spec.stages[0], attempt)
    settings["job"] = {"name": "digits", "namespace": "default", "uid": uid}
    settings["checkpoint"] = {"everySteps": 1, "keep": 100, "resume": "Never"} | checkpoint
    settings |= {"localBatchSize": 64} | dict(config or {})
    if "keepCompiledGraphs" not in checkpoint:
        settings["checkpoint"]["keepCompiledGraphs"] = True
        elsewhere = ("job", "attempt", "checkpoint")
        known = {name: value for name, value in settings.items() if name not in elsewhere}
        sharedgraphs.give(_stage(folder, uid, config), known)
    path = folder / f"{uid}-{attempt}.yaml"
    path.write_text(yaml.safe_dump(settings))
    variables = {
        "RESNETBOOST_CHECKPOINTS": str(folder / "checkpoints"),
        "RESNETBOOST_TERMINATION_LOG": str(folder / f"{uid}-{attempt}.json"),
        "RESNETBOOST_BIND_ADDRESS": "127.0.0.1",
        "RESNETBOOST_METRICS_PORT": "0",
    }
    environment, command = os.environ | variables, ["-m", "resnetboost_trainer", str(path)]
    if spawned:
        return subprocess.Popen([sys.executable, *command], env=environment, cwd=folder)
    return subprocess.Popen(forkserver.command(*command), env=forkserver.environment(environment), cwd=folder)


def train(folder: Path, attempt: int, uid: str = "uid", **settings: Any) -> None:
    """Train to the end; arguments as for `start`."""
    assert start(folder, attempt, uid, **settings).wait(timeout=300) == 0
    sharedgraphs.collect(_stage(folder, uid, settings.get("config")))


def _stage(folder: Path, uid: str, config: Mapping[str, Any] | None) -> Path:
    return folder / "checkpoints" / uid / str((config or {}).get("stage", "base"))


def final_weights(attempt: Path) -> dict[str, bytes]:
    """Contents of the last checkpoint of that attempt, as bytes."""
    weights = {path.name: path.read_bytes() for path in attempt.glob(f"step-{STEPS:08d}/*.safetensors")}
    assert weights, f"{attempt} did not come to its end"
    return weights
