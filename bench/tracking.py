"""Seconds of a resnet20 step with TensorBoard's files and a real MLflow server as trackers, against none.

Both in this process, in turns of some seconds; the server runs on the same cores. As other load moves such seconds by
more than trackers take, their own time is measured too: that of the rows, and the CPU time of their threads.
"""

import tempfile
import threading
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

PAIRS, TURN_SECONDS = 4, 10.0  # a tracker sends every 5 s
EVERY_STEPS = api.Trackers().every_steps
_THREADS = "tracker-"  # how the names of their threads begin
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
        step, own, found = 0, list[float](), {name: list[float]() for name in turns}
        for pair in range(PAIRS):
            for name in sorted(turns, reverse=bool(pair % 2)):
                before, first = _thread_seconds(), step
                seconds, rows, step = _turn(program, turns[name], step)
                found[name].append(seconds)
                if name == "with":
                    own.append((rows + _thread_seconds() - before) / (seconds * (step - first)))
        tracked.end("Succeeded", "")
    added = [ours / theirs - 1 for ours, theirs in zip(found["with"], found["without"], strict=True)]
    return [
        share("tracking_step_share", added, "a step without trackers"),
        share("tracking_own_share", own, "the time of the steps, trackers' own work alone"),
    ]


def _thread_seconds() -> float:
    """CPU seconds of the trackers' threads so far."""
    threads = [thread.native_id for thread in threading.enumerate() if thread.name.startswith(_THREADS)]
    return sum(int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0]) for number in threads) / 1e9


def _turn(program: Program, tracking: Tracking, step: int) -> tuple[float, float, int]:
    """Return the seconds of a step, those of all rows, and the number of the last step."""
    images, labels = trainer.batch(channels=1, size=8)
    rows, first, started = 0.0, step, time.perf_counter()
    while time.perf_counter() - started < TURN_SECONDS:
        program.step(images, labels, trainer.MOMENT, stop=False)
        step += 1
        row: Row = {"step": step, "time": time.time(), **dict.fromkeys(_COLUMNS, 0.5)}
        at = time.perf_counter()
        tracking.row(row)
        rows += time.perf_counter() - at
    return (time.perf_counter() - started) / (step - first), rows, step
