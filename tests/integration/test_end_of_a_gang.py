"""A gang's end with real ranks: a rank that exits first does not make the others fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resnetboost_api import names
from resnetboost_operator.local import machine

pytestmark = pytest.mark.slow

RANK = Path(__file__).with_name("stubs") / "leavingrank.py"
TIMEOUT_SECONDS = 120


def start(rank: int, coordinator: str, then: str) -> subprocess.Popen[str]:
    variables = {
        "RESNETBOOST_RANK": str(rank),
        "RESNETBOOST_WORLD_SIZE": "2",
        "RESNETBOOST_COORDINATOR": coordinator,
        "MS_CPU_COMM_OP_TIMEOUT": "6",  # a collective waits so long for a peer (30 by default); ranks join 2 s apart
        "GLOG_v": "4",
    }
    command = [sys.executable, str(RANK), then]
    return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)


def test_a_rank_leaves_well_although_another_was_killed(capfd: pytest.CaptureFixture[str]) -> None:
    addresses = machine.Addresses()
    coordinator = f"{addresses.next()}:{names.PORT_COORDINATOR}"
    first, second = ranks = [start(0, coordinator, "leaves"), start(1, coordinator, "stays")]
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
        addresses.close()
    assert (first.returncode, told) == (0, "left\n")
    assert "rank 0 leaves without hearing from all others" in capfd.readouterr().err
