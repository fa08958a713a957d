"""Checkpoints of today's trainer and of 0.1.0's: each goes on from the other's as from its own."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from resnetboost_operator.cli import job_file
from resnetboost_operator.job import parse_job
from resnetboost_operator.manifests.trainer_config import trainer_config
from support.earlierrelease import EarlierRelease

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS_PER_EPOCH, LAST = 22, 44
_SECONDS = 400


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> EarlierRelease:
    return EarlierRelease(tmp_path_factory.mktemp("earlier") / "0.1.0")


def config(example: str, attempt: int) -> dict[str, Any]:
    """Today's operator's config of one rank for so many epochs as there were attempts."""
    changes = [f"stages[0].epochs={attempt + 1}", "stages[0].learningRate.warmupEpochs=0"]
    changes += ["stages[0].localBatchSize=64", "device.count=1"]
    job = parse_job(job_file.load(EXAMPLES / f"{example}.yaml", changes))
    found = trainer_config(job, job.spec.stages[0], attempt)
    return found | {"job": {"name": "digits", "namespace": "default", "uid": "uid"}}


def train(folder: Path, example: str, attempt: int, trainer: EarlierRelease | None) -> dict[int, float]:
    """Train an attempt to its end, with today's trainer or an earlier one; returns the losses by step."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config(example, attempt)))
    variables = {
        "RESNETBOOST_CHECKPOINTS": str(folder / "checkpoints"),
        "RESNETBOOST_TERMINATION_LOG": str(folder / "termination"),
        "RESNETBOOST_BIND_ADDRESS": "127.0.0.1",
        "RESNETBOOST_METRICS_PORT": "0",
    }
    environment = os.environ if trainer is None else trainer.environment()
    command = [sys.executable, "-m", "resnetboost_trainer", str(path)]
    done = subprocess.run(
        command,
        env={**environment, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = folder / "checkpoints" / "uid" / "base" / f"attempt-{attempt}" / "metrics.csv"
    with metrics.open() as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file) if row["loss"]}


@pytest.mark.parametrize("example", ["digits", "digits-thor"])
@pytest.mark.parametrize("first", ["today", "0.1.0"])
def test_each_goes_on_from_the_others_checkpoint(
    tmp_path: Path, earlier: EarlierRelease, example: str, first: str
) -> None:
    trainers = {"today": None, "0.1.0": earlier}
    begun = tmp_path / "begun"
    begun.mkdir()
    train(begun, example, 0, trainers[first])
    losses = {}
    for name, trainer in trainers.items():
        folder = shutil.copytree(begun, tmp_path / name)
        losses[name] = train(folder, example, 1, trainer)
        assert min(losses[name]) == STEPS_PER_EPOCH + 1, "it did not resume from the checkpoint"
    # Operators of another version sum in another order; a lost momentum or factor shows in the second digit.
    for step in range(STEPS_PER_EPOCH + 1, STEPS_PER_EPOCH + 5):
        assert losses["today"][step] == pytest.approx(losses["0.1.0"][step], rel=2e-3), step
    assert losses["today"][LAST] == pytest.approx(losses["0.1.0"][LAST], rel=2e-2)
