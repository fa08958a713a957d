"""Seconds of a resnet20 step with TensorBoard's files and a real MLflow server as trackers, against none.

Both in this process, in turns of some seconds; the server runs on the same cores.
"""

import tempfile
import time
from pathlib import Path

from beds.trackers import MLflow
from bench import trainer
from bench.entries import Entry, share
from resnetboost_api import tracking as api
from resnetboost_trainer.engine.train_step import Program
from resnetboost_trainer.metrics.record import Row
from resnetboost_trainer.tracking import Run
from resnetboost_trainer.tracking.mlflow import MLflow as MLflowTracker
from resnetboost_trainer.tracking.tensorboard import TensorBoard
from resnetboost_trainer.tracking.tracking import Tracking
from resnetboost_trainer.tracking.worker import Worker

PAIRS, TURN_SECONDS = 7, 10.0  # a tracker sends every 5 s
EVERY_STEPS = api.Trackers().every_steps
_COLUMNS = ("loss", "accuracy", "learning_rate", "step_seconds", "images_per_second", "data_seconds")


def measure() -> list[Entry]:
    """The share that trackers add to a step; goal below 0.01."""
    program = trainer.program(channels=1)
    with tempfile.TemporaryDirectory() as folder, MLflow() as server:
        files = TensorBoard(api.TensorBoard(), Path(folder))
        remote = MLflowTracker(api.MLflow(tracking_uri=server.address, experiment="bench"))
        tracked = Tracking([Worker("tensorboard", files), Worker("mlflow", remote)], EVERY_STEPS)
        tracked.start(Run(job="bench", namespace="default", uid="bench", stage="base", attempt=0, parameters={}))
        turns = {"with": tracked, "without": Tracking()}
        _turn(program, tracked, 0)
        step, found = 0, {name: list[float]() for name in turns}
        for pair in range(PAIRS):
            for name in sorted(turns, reverse=bool(pair % 2)):
                seconds, step = _turn(program, turns[name], step)
                found[name].append(seconds)
        tracked.end("Succeeded", "")
    added = [ours / theirs - 1 for ours, theirs in zip(found["with"], found["without"], strict=True)]
    return [share("tracking_step_share", added, "a step without trackers")]


def _turn(program: Program, tracking: Tracking, step: int) -> tuple[float, int]:
    """Return the seconds of a step, and the number of the last one."""
    images, labels = trainer.batch(channels=1, size=8)
    first, started = step, time.perf_counter()
    while time.perf_counter() - started < TURN_SECONDS:
        program.step(images, labels, trainer.MOMENT, stop=False)
        step += 1
        row: Row = {"step": step, "time": time.time(), **dict.fromkeys(_COLUMNS, 0.5)}
        tracking.row(row)
    return (time.perf_counter() - started) / (step - first), step
