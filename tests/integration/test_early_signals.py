"""SIGTERM before there is anything to save: the trainer exits at once, whatever it is doing."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from beds.operator.wait import eventually
from beds.ports import free_port
from support.trainerconfig import GOOD

TIMEOUT_SECONDS = 30
# A stub for the first package the trainer imports, whose import takes long.
SLOW_IMPORT = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"


def trainer(folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start rank 1 of 2 as a pod does."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(GOOD))
    own = {
        "RESNETBOOST_CONFIG": str(config),
        "RESNETBOOST_BIND_ADDRESS": "127.0.0.1",
        "RESNETBOOST_METRICS_PORT": "0",
        "RESNETBOOST_TERMINATION_LOG": str(folder / "termination-log"),
        "RESNETBOOST_RANK": "1",
        "RESNETBOOST_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-m", "resnetboost_trainer"]
    environment = os.environ | own | variables
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], said: str) -> tuple[int, str]:
    """Exit code and output after a SIGTERM sent once that line was printed."""
    try:
        assert process.stdout is not None
        while said not in (line := process.stdout.readline()):
            assert line, "it ended before"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, output


def verdict(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "termination-log").read_text())
    return told


def test_sigterm_during_imports_ends_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "argparse.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join([str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")])
    code, output = ended(trainer(tmp_path, PYTHONPATH=path), "importing")
    assert code == 16, output
    found = verdict(tmp_path)
    assert (found["class"], found["rank"], found["exitCode"]) == ("Interrupted", 1, 16)
    assert "nothing was trained" in found["message"]


def test_sigterm_ends_a_rank_that_waits_for_others_at_once(tmp_path: Path) -> None:
    with socket.socket() as silent:  # accepts connections and never answers: a coordinator that hangs
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        coordinator = f"127.0.0.1:{silent.getsockname()[1]}"
        process = trainer(tmp_path, RESNETBOOST_COORDINATOR=coordinator)
        code, output = ended(process, "metrics and progress")
    assert code == 16, output
    assert verdict(tmp_path)["class"] == "Interrupted"


def test_sigterm_ends_a_rank_that_mindspore_lets_wait_for_the_others(tmp_path: Path) -> None:
    """No Python runs there, so that the kernel has to end it."""
    process = trainer(tmp_path, RESNETBOOST_RANK="0", RESNETBOOST_COORDINATOR=f"127.0.0.1:{free_port()}")
    try:
        eventually(lambda: is_left_to_the_kernel(process.pid), bool, "it meets its gang", TIMEOUT_SECONDS)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGTERM


def is_left_to_the_kernel(pid: int) -> bool:
    """Whether a process that caught SIGTERM does no more, while it still cuts MindSpore's sleeps short by SIGALRM."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    caught = int(status["SigCgt"], 16)
    return bool(caught >> (signal.SIGALRM - 1) & 1) and not caught >> (signal.SIGTERM - 1) & 1
