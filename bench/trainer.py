"""Runs real trainer processes, or a trainer's program in this process, for suites to measure."""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from mindspore import Tensor

from resnetboost_trainer import config
from resnetboost_trainer.distributed.communicator import Communicator
from resnetboost_trainer.engine import device
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.models import resnet
from resnetboost_trainer.optim.schedule import StepSchedule

BATCH = 64
MOMENT = StepSchedule(step=1, learning_rate=0.01, damping=0.0)


def settings(**changes: Any) -> dict[str, Any]:
    """Contents of a config file: resnet20 on digits."""
    return {
        "job": {"name": "bench", "namespace": "default", "uid": "bench"},
        "stage": "base",
        "attempt": 0,
        "seed": 0,
        "device": {"type": "CPU"},
        "model": {
            "name": "resnet20",
            "numClasses": 10,
            "init": {"convolution": "HeNormal", "head": "Uniform", "zeroGamma": False},
        },
        "dataset": {"name": "digits"},
        "algorithm": "Momentum",
        "epochs": 3,
        "localBatchSize": BATCH,
        "labelSmoothing": 0.1,
        "precision": "Float32",
        "accumulationSteps": 1,
        "lossScale": 1,
        "evaluateEveryEpochs": 1000,
        "learningRate": {
            "schedule": "Constant",
            "peak": 0.05,
            "final": 0,
            "warmupEpochs": 0,
            "gamma": 0.1,
            "power": 2,
        },
        "momentum": {"momentum": 0.9, "weightDecay": 1e-4, "nesterov": False},
        "checkpoint": {"everySteps": 1000000, "keep": 1, "resume": "Never"},
    } | changes


def program(channels: int, **changes: Any) -> Program:
    """Compiled graphs of a resnet20 step on one rank, in this process."""
    device.prepare()
    configured = configuration(**changes)
    name, classes = configured.model.name, configured.model.num_classes
    return Program(configured, resnet.build(name, classes, channels, configured.seed), Communicator(0, 1))


def configuration(**changes: Any) -> config.Config:
    """The trainer's configuration read from `settings`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(settings(**changes)))
        return config.load(path)


def batch(channels: int, size: int) -> tuple[Tensor, Tensor]:
    """Random images (BATCH, channels, size, size) and labels; the content does not affect a step's time."""
    generator = np.random.default_rng(0)
    images = generator.standard_normal((BATCH, channels, size, size), np.float32)
    return Tensor(images), Tensor(generator.integers(0, 10, BATCH).astype(np.int32))


def gang(ranks: int, threads: int, **changes: Any) -> list[dict[str, float]]:
    """Train with that many processes of that many threads, each on its own cores; rank 0's metrics.csv rows."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "config.yaml").write_text(yaml.safe_dump(settings(localBatchSize=BATCH // ranks, **changes)))
        together(root, ranks, threads, "resnetboost_trainer")
        rows = csv.DictReader((root / "bench/base/attempt-0/metrics.csv").open())
        return [{name: float(value) for name, value in row.items() if value} for row in rows]


def together(root: Path, ranks: int, threads: int, module: str, *arguments: str) -> None:
    """Run that module in as many processes, as the ranks of a gang, until they exit; `root` receives their logs.

    Raises RuntimeError when one fails.
    """
    processes = [_rank(root, rank, ranks, threads, [module, *arguments]) for rank in range(ranks)]
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise RuntimeError(f"{module} failed with {codes}: {(root / 'log-0').read_text()[-2000:]}")


def _rank(root: Path, rank: int, ranks: int, threads: int, module: list[str]) -> subprocess.Popen[bytes]:
    network = os.getpid() % 200 + 20
    variables = {
        "RESNETBOOST_CONFIG": str(root / "config.yaml"),
        "RESNETBOOST_CHECKPOINTS": str(root),
        "RESNETBOOST_RANK": str(rank),
        "RESNETBOOST_WORLD_SIZE": str(ranks),
        "RESNETBOOST_COORDINATOR": f"127.{network}.0.1:8118",
        "RESNETBOOST_BIND_ADDRESS": f"127.{network}.0.{rank + 1}",
        "OMP_NUM_THREADS": str(threads),
    }
    cores = {(rank * threads + thread) % (os.cpu_count() or 1) for thread in range(threads)}
    command = ["taskset", "-c", ",".join(map(str, sorted(cores))), sys.executable, "-m", *module]
    with (root / f"log-{rank}").open("wb") as log:
        return subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
