"""Whole runs with real ranks and real data: kills, stops, refusals, and the results."""

import csv
import json
import os
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import trainerconfig
from support.wholerun import Run, checkpointed, completed, job

pytestmark = pytest.mark.slow

JOB = job(
    {"name": "base", "algorithm": "Momentum", "epochs": 4, "localBatchSize": 32, "learningRate": {"peak": 0.1}},
    checkpoint={"everySteps": 10, "keep": 3},
)
STEPS = 4 * 22


def check_telling(run: Run) -> None:
    """Every rank exposes metrics to Prometheus, and /progress names the slowest one."""
    for rank in (0, 1):
        told = run.ask(rank, "/metrics")
        labels = f'{{job_name="digits",job_namespace="default",rank="{rank}",stage="base"}}'
        for part in ("step", "data_wait", "compute", "collective"):
            count = next(line for line in told.splitlines() if line.startswith(f"resnetboost_{part}_seconds_count"))
            assert float(count.removeprefix(f"resnetboost_{part}_seconds_count{labels} ")) > 10, part
        for name in ("loss", "accuracy_ratio", "learning_rate", "epoch", "step", "images_total"):
            assert f"resnetboost_{name}{labels}" in told, name
        assert 'convolution="' in told
        for name in ("checkpoint_step", "checkpoint_timestamp_seconds", "checkpoint_every_steps"):
            assert (f"resnetboost_{name}{labels}" in told) == (rank == 0), "only who writes checkpoints tells of them"
    progress = json.loads(run.ask(0, "/progress"))
    assert progress["slowestRank"] in (0, 1)
    assert progress["slowestComputeSeconds"] > 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        run.ask(0, "/etc/passwd")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return completed(tmp_path_factory.mktemp("undisturbed"), JOB)


def test_an_undisturbed_run_learns_the_digits_and_leaves_everything_behind(undisturbed: Run) -> None:
    status = undisturbed.status()
    assert (status["phase"], status["restarts"]) == ("Complete", 0)
    assert status["stages"][0]["top1"] >= 0.97
    last_words = json.loads(next(undisturbed.out.glob("pods/*-0/termination-log")).read_text())
    told = [status["progress"][name] for name in ("step", "totalSteps", "loss", "accuracy")]
    assert told == [last_words[name] for name in ("step", "totalSteps", "loss", "accuracy")]
    for name in ("job.yaml", "metrics.csv", "report.html", "report.png", "logs/digits-base-0-1.log"):
        assert (undisturbed.out / name).stat().st_size > 0, name
    assert set(undisturbed.weights()) == {
        "model.safetensors",
        "optimizer.safetensors",
        "rank-0000.safetensors",
        "rank-0001.safetensors",
    }
    rows = csv.DictReader((undisturbed.out / "metrics.csv").open())
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))


def test_a_killed_rank_costs_a_restart_and_not_a_bit(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, JOB).start()
    run.wait(checkpointed(20))
    check_telling(run)
    os.kill(run.rank(1), signal.SIGKILL)
    code, output = run.finish()
    assert code == 0, output
    status = run.status()
    (record,) = status["attempts"]
    assert (status["phase"], status["restarts"]) == ("Complete", 1)
    assert (record["rank"], record["exitCode"], record["reason"]) == (1, 137, "Killed")
    assert record["lastStep"] >= 20
    assert run.weights() == undisturbed.weights()


def test_ctrl_c_stops_all_ranks_after_the_same_step_and_a_second_run_goes_on(undisturbed: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, JOB).start()
    run.wait(checkpointed(10))
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    code, output = run.finish()
    assert code == 16, output
    stopped = run.status()
    step = stopped["attempts"][0]["checkpointStep"]
    assert (stopped["phase"], stopped["restarts"]) == ("Suspended", 0)
    ends = [json.loads(path.read_text()) for path in run.out.glob("pods/*/termination-log")]
    assert [(end["class"], end["step"]) for end in ends] == [("Interrupted", step)] * 2
    code, output = run.start().finish()
    assert code == 0, output
    assert run.weights() == undisturbed.weights()


def test_a_diverging_run_fails_at_once_with_its_class_and_a_remedy(tmp_path: Path) -> None:
    run = Run(tmp_path, JOB)
    changed = yaml.safe_load(run.job.read_text())
    changed["spec"]["device"]["count"] = 1
    changed["spec"]["stages"][0]["learningRate"] = {"schedule": "Constant", "peak": 1000}
    run.job.write_text(yaml.safe_dump(changed))
    code, output = run.start().finish()
    assert code == 12, output
    failed = next(found for found in run.status()["conditions"] if found["type"] == "Failed")
    assert failed["reason"] == "NumericsError"
    assert "lower learningRate.peak" in failed["message"]


def trainer(tmp_path: Path, undisturbed: Run, attempt: int, **changes: Any) -> subprocess.CompletedProcess[str]:
    """One rank of the trainer, run directly on the checkpoints of the undisturbed run."""
    (config,) = undisturbed.out.glob("pods/digits-base-0-0/**/config.yaml")
    settings = yaml.safe_load(config.read_text()) | {"attempt": attempt} | changes
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    variables = {
        "RESNETBOOST_CHECKPOINTS": str(undisturbed.out / "checkpoints"),
        "RESNETBOOST_TERMINATION_LOG": str(tmp_path / "termination-log"),
        "RESNETBOOST_BIND_ADDRESS": "127.0.99.1",
    }
    command = [sys.executable, "-m", "resnetboost_trainer", str(tmp_path / "config.yaml")]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path
    )


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"model": trainerconfig.MODEL | {"name": "resnet32"}}, 10, "checkpoint of another job: its model"),
        ({"seed": 7}, 10, "checkpoint of another job: its seed"),
        ({"localBatchSize": 2000}, 10, "use at most 1437"),
        ({"model": trainerconfig.MODEL | {"numClasses": 3}}, 10, "numClasses"),
        ({"dataset": {"name": "npz", "path": "/nowhere/data.npz"}}, 11, "/nowhere/data.npz"),
    ],
    ids=["another model", "another seed", "batch larger than the data", "too few classes", "missing file"],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    changes: dict[str, Any], code: int, says: str, undisturbed: Run, tmp_path: Path
) -> None:
    # The batch of both ranks together, so that the checkpoint differs only in what the case is about.
    ended = trainer(tmp_path, undisturbed, 1, **({"localBatchSize": 64} | changes))
    assert ended.returncode == code, ended.stderr
    assert says in json.loads((tmp_path / "termination-log").read_text())["message"]
    assert "Traceback" not in ended.stderr


def test_a_finished_stage_that_is_started_again_only_evaluates(undisturbed: Run, tmp_path: Path) -> None:
    ended = trainer(tmp_path, undisturbed, 5, localBatchSize=64)
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads((tmp_path / "termination-log").read_text())
    assert verdict["step"] == STEPS
    assert verdict["top1"] == pytest.approx(undisturbed.status()["stages"][0]["top1"])
