"""Runs real ranks of one gang, each a script of tests/integration/stubs, and returns what they wrote."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resnetboost_api import names
from resnetboost_operator.local import machine
from support import forkserver

TESTS = Path(__file__).parents[1]
TIMEOUT_SECONDS = 300


def run(script: str, ranks: int, folder: Path, **more: str) -> list[dict[str, NDArray[Any]]]:
    """Run a script as all ranks; returns what each wrote to rank-<n>.npz in the folder. All must exit with 0.

    `more` are further variables of their environment.
    """
    addresses = machine.Addresses()  # another program could take a port of 127.0.0.1 before the coordinator does
    coordinator = f"{addresses.next()}:{names.PORT_COORDINATOR}"
    processes = [_start(script, rank, ranks, coordinator, folder, more) for rank in range(ranks)]
    try:
        codes = [process.wait(TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        addresses.close()
    assert codes == [0] * ranks
    return [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(ranks)]


def _start(
    script: str, rank: int, ranks: int, coordinator: str, folder: Path, more: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    variables = {
        **more,
        "RESNETBOOST_RANK": str(rank),
        "RESNETBOOST_WORLD_SIZE": str(ranks),
        "RESNETBOOST_COORDINATOR": coordinator,
        "PYTHONPATH": str(TESTS),
        "OMP_NUM_THREADS": "1",
        "GLOG_v": "4",
    }
    command = forkserver.command(str(TESTS / "integration" / "stubs" / script), str(folder))
    return subprocess.Popen(command, env=forkserver.environment(os.environ | variables), cwd=folder)
