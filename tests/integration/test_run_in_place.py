"""`resnetboost run` restarts ranks in place: a real runner, real processes, a stub launcher and a stub trainer."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import stubtrainer

RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))
JOB = Path(__file__).parents[2] / "examples" / "digits.yaml"


def run(folder: Path, *settings: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The finished command, and the status that it left."""
    command = [RESNETBOOST, "run", str(JOB), "--out", str(folder / "run")]
    stub = "template.env=[{name: STUB, value: '1,0,15,137'}]"
    for setting in ("failurePolicy.backoffSeconds=0", "stages[0].epochs=6", stub, *settings):
        command += ["--set", setting]
    launched = "failurePolicy.restartIn=NewPod" not in settings  # else the real one is the rank itself, too
    environment = {**os.environ, "PYTHONPATH": str(stubtrainer.install(folder, launched=launched))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done, yaml.safe_load((folder / "run" / "status.yaml").read_text())


@pytest.mark.parametrize(("where", "logs"), [("Pod", 2), ("NewPod", 4)])
def test_a_killed_rank_is_healed_in_its_pod(tmp_path: Path, where: str, logs: int) -> None:
    done, status = run(tmp_path, f"failurePolicy.restartIn={where}")
    assert (done.returncode, status["phase"], status["restarts"]) == (0, "Complete", 1), done.stderr
    (record,) = status["attempts"]
    assert (record["reason"], record["rank"], record["exitCode"]) == ("Killed", 1, 137)
    told = done.stdout + done.stderr
    assert (("restarts in place" in told), ("gets new pods" in told)) == (where == "Pod", False), told
    assert len(list((tmp_path / "run" / "logs").iterdir())) == logs


def test_only_this_user_can_read_the_token(tmp_path: Path) -> None:
    run(tmp_path)
    (token, _) = (tmp_path / "run" / "pods").glob("*/launcher-token/token")
    assert token.stat().st_mode & 0o077 == 0
