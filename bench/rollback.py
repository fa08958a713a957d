"""Accuracy of runs that a far too high learning rate drives into divergence, against runs at a well-tuned rate.

Both are whole jobs of `resnetboost run`: resnet20 on digits, 8 epochs, the same seeds, side by side. The diverging ones
have failurePolicy.divergence and nothing else to help them: a hundred times the rate for Momentum, where the loss
explodes in the first epoch, and a hundred times for THOR, in its warm-up. A run that does not go back at all, or that
fails, would make the figure meaningless: it is an error.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.entries import Entry, figure, ratio

SEEDS = 4
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))

TUNED = {
    "Momentum": {"schedule": "Cosine", "peak": 0.2},
    "THOR": {"schedule": "Cosine", "peak": 0.05, "warmupEpochs": 2},
}
HIGH = {
    "Momentum": {"schedule": "Cosine", "peak": 20},
    "THOR": {"schedule": "Cosine", "peak": 5, "warmupEpochs": 2},
}
DIVERGENCE = {
    "Momentum": {"forSteps": 8, "learningRateFactor": 0.01},
    "THOR": {"forSteps": 8, "learningRateFactor": 0.1},
}


def measure() -> list[Entry]:
    """Momentum and THOR."""
    return [entry for algorithm in TUNED for entry in _compare(algorithm)]


def _compare(algorithm: str) -> list[Entry]:
    ours, theirs, back = [], [], []
    for seed in range(SEEDS):
        high = _run(algorithm, seed, HIGH[algorithm], {"backoffSeconds": 0, "divergence": DIVERGENCE[algorithm]})
        tuned = _run(algorithm, seed, TUNED[algorithm], {"backoffSeconds": 0})
        ours.append(high["stages"][0]["top1"])
        theirs.append(tuned["stages"][0]["top1"])
        back.append(len(high["rollBacks"]))
    name = f"rollback_{algorithm.lower()}"
    return [
        ratio(f"{name}_accuracy", ours, theirs, "top-1", f"the same job at {TUNED[algorithm]['peak']}, well tuned"),
        figure(f"{name}_count", back, "roll-backs", "how often these runs went back"),
    ]


def _run(algorithm: str, seed: int, rate: dict[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
    """The status of one job at its end."""
    stage = {"name": "base", "algorithm": algorithm, "epochs": 8, "localBatchSize": 64, "learningRate": rate}
    job = {
        "apiVersion": "resnetboost.io/v1alpha1",
        "kind": "ResNetBoostJob",
        "metadata": {"name": "digits"},
        "spec": {
            "seed": seed,
            "model": {"name": "resnet20", "numClasses": 10},
            "dataset": {"name": "digits"},
            "stages": [stage],
            "checkpoint": {"everySteps": 5},
            "failurePolicy": policy,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "job.yaml"), Path(folder, "run")
        path.write_text(yaml.safe_dump(job))
        subprocess.run([RESNETBOOST, "run", str(path), "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        status: dict[str, Any] = yaml.safe_load((out / "status.yaml").read_text())
    return status
