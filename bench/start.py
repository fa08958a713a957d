"""Seconds of `resnetboost run examples/digits.yaml`: until its first finished step, and as a whole.

A first start compiles; then it is stopped, and the same command resumes it with the graphs that the first start kept.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.entries import Entry, figure, ratio
from bench.restart_ranks import JOB, until_steps

PAIRS, RUNS = 3, 2
PROGRAM = str(Path(sys.executable).with_name("resnetboost"))


def measure() -> list[Entry]:
    """Starts of two ranks with kept graphs and without; whole runs in a new folder."""
    pairs = [_pair() for _ in range(PAIRS)]
    first, kept = [list(found) for found in zip(*pairs, strict=True)]
    return [
        ratio("local_start_seconds", kept, first, "s", "the first start, which compiles; 2 ranks, to the first step"),
        figure("local_run_seconds", [_whole() for _ in range(RUNS)], "s", f"the whole of `resnetboost run {JOB}`"),
    ]


def _pair() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        return _start(Path(folder, "run"), attempt=0), _start(Path(folder, "run"), attempt=1)


def _start(folder: Path, attempt: int) -> float:
    """Seconds until the first step; the run is stopped then, with a checkpoint."""
    command = [PROGRAM, "run", str(JOB), "--out", str(folder), "--set", "stages[0].epochs=500"]
    began = time.monotonic()
    with folder.with_suffix(".log").open("wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        seconds = until_steps(run, folder, attempt, steps=1) - began
        run.send_signal(signal.SIGINT)
        run.wait(timeout=60)
    finally:
        run.kill()
    return seconds


def _whole() -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        subprocess.run([PROGRAM, "run", str(JOB), "--out", folder], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began
