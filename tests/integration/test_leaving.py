"""The end of a gang with real ranks: whoever goes first must not cost the others their verdict."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RANK = Path(__file__).with_name("stubs") / "leavingrank.py"
TIMEOUT_SECONDS = 120


def start(rank: int, port: int, then: str) -> subprocess.Popen[str]:
    variables = {
        "RESNETBOOST_RANK": str(rank),
        "RESNETBOOST_WORLD_SIZE": "2",
        "RESNETBOOST_COORDINATOR": f"127.0.0.1:{port}",
        "MS_CPU_COMM_OP_TIMEOUT": "6",  # seconds a collective waits for a peer (30 if not told); ranks join 2 s apart
        "GLOG_v": "4",
    }
    command = [sys.executable, str(RANK), then]
    return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)


def test_a_rank_that_goes_without_an_answer_fails_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    first, second = ranks = [start(0, port, "leaves"), start(1, port, "stays")]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "together\n"
        second.kill()
        told, _ = first.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert (first.returncode, told) == (0, "left\n")
    assert "rank 0 leaves without hearing from all others" in capfd.readouterr().err
