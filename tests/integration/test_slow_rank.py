"""A real gang with one rank that is stopped again and again: it is named, and a uniform gang has no slow rank."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.wholerun import RESNETBOOST, Run, job

pytestmark = pytest.mark.slow

STAGE = {"name": "base", "algorithm": "Momentum", "epochs": 5000, "localBatchSize": 32, "learningRate": {"peak": 0.01}}
JOB = job(STAGE, failurePolicy={"straggler": {"factor": 3.0, "forSeconds": 2, "action": "Replace"}})
# Of a rank that runs a sixth of the time a step takes six times as long. A busy machine alone makes less than 3 of it.
STOPPED_SECONDS, RUNNING_SECONDS = 0.5, 0.1


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop that process for most of the time."""
    over = threading.Event()

    def pulse() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(STOPPED_SECONDS)
            os.kill(pid, signal.SIGCONT)
            over.wait(RUNNING_SECONDS)

    pulses = threading.Thread(target=pulse)
    pulses.start()
    try:
        yield
    finally:
        over.set()
        pulses.join()


def straggling(status: dict[str, Any]) -> dict[str, Any] | None:
    return next((found for found in status.get("conditions", ()) if found["type"] == "Straggling"), None)


def is_straggling(status: dict[str, Any]) -> bool:
    return (straggling(status) or {}).get("status") == "True"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path, JOB, forked=False).start()  # a signal stops the process itself, not one that stands for it
    yield started
    assert started.process is not None
    started.process.send_signal(signal.SIGINT)
    started.finish()


def test_the_rank_that_is_stopped_again_and_again_is_named(run: Run) -> None:
    uniform = run.wait(lambda status: (status.get("progress") or {}).get("step", 0) > 100)
    assert straggling(uniform) is None, "both ranks compute alike"
    with slowed(run.rank(1)):
        status = run.wait(is_straggling)
        condition, (found,) = straggling(status), status["progress"]["stragglers"]
        told = subprocess.run([RESNETBOOST, "status", str(run.out)], capture_output=True, text=True, check=True).stdout
    assert condition is not None
    since = found["since"]
    assert condition["message"] == (
        f"rank 1 (digits-base-0-1 on {found['node']}) is slow since {since}, and every step waits for it"
        f"; {found['node']} is not replaced, because the whole gang is on it"
    )
    assert (found["rank"], found["index"]) == (1, 1)
    assert found["seconds"] > 3 * found["median"]
    assert "slow       rank 1" in told
    assert "the gang's median" in told
    assert status["restarts"] == 0
    after = run.wait(lambda status: not is_straggling(status))
    assert "stragglers" not in after["progress"]
    assert 'resnetboost_straggler{job_name="digits",job_namespace="default",rank="1",stage="base"} 0.0' in run.ask(
        1, "/metrics"
    )
