"""`resnetboost run` of a gang whose learning rate is far too high: it goes back, learns, and shows it everywhere."""

import csv
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.wholerun import RESNETBOOST, Run, job

pytestmark = pytest.mark.slow

STAGE = {
    "name": "base",
    "algorithm": "Momentum",
    "epochs": 4,
    "localBatchSize": 32,
    "learningRate": {"schedule": "Cosine", "peak": 20},
}
JOB = job(
    STAGE,
    checkpoint={"everySteps": 5},
    failurePolicy={"backoffSeconds": 0, "divergence": {"forSteps": 8, "learningRateFactor": 0.01}},
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("undisturbed"), JOB).start()
    code, output = run.finish()
    assert code == 0, output
    assert "goes back to" in output
    return run


def test_a_gang_that_diverges_goes_back_learns_and_says_so(undisturbed: Run) -> None:
    status = undisturbed.status()
    (back,) = status["rollBacks"]
    assert (back["attempt"], back["skipToBatch"], back["learningRateFactor"]) == (0, back["fromStep"], 0.01)
    assert status["stages"][0]["top1"] > 0.9
    assert status["attempts"][0]["rolledBack"]
    rows = list(csv.DictReader((undisturbed.out / "metrics.csv").open()))
    assert [int(row["step"]) for row in rows] == list(range(1, 89))
    assert [row["step"] for row in rows if row["rolled_back_from"]] == [str(back.get("toStep", 0) + 1)]
    assert (undisturbed.out / "report.png").stat().st_size > 0
    told = subprocess.run([RESNETBOOST, "status", str(undisturbed.out)], capture_output=True, text=True, check=True)
    assert "went back" in told.stdout, told.stdout


def test_a_rank_killed_after_a_roll_back_costs_no_bit(undisturbed: Run, tmp_path: Path) -> None:
    def back_and_saved(status: dict[str, Any]) -> bool:
        progress = status.get("progress") or {}
        return progress.get("attempt") == 1 and progress.get("checkpointStep", 0) >= 20

    run = Run(tmp_path, JOB).start()
    run.wait(back_and_saved)
    os.kill(run.rank(1), signal.SIGKILL)
    code, output = run.finish()
    assert code == 0, output
    status = run.status()
    assert [record["reason"] for record in status["attempts"]][1:] == ["Killed"]
    assert len(status["rollBacks"]) == 1
    assert run.weights() == undisturbed.weights()
