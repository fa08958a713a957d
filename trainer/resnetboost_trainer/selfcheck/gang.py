"""Starts the ranks of a self-check on this machine, with a time limit, and reads what they found."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from resnetboost_api import names
from resnetboost_trainer.selfcheck import rank as ranks
from resnetboost_trainer.selfcheck.cases import Results

LOG_TAIL_BYTES = 4096
POLL_SECONDS = 0.1


class Ended(msgspec.Struct, frozen=True):
    """How a gang ended. `results` is None if it never met. `trouble` says what went wrong, '' if nothing did.

    `logs` are the ends of the ranks' logs, where something did.
    """

    results: Results | None
    trouble: str
    seconds: float
    logs: dict[str, str] = {}


def run(folder: Path, device: str, count: int, plain: bool, limit_seconds: float) -> Ended:
    """Run a gang of `count` ranks in the folder, which must be empty. Ends it after the limit and when a rank fails."""
    began = time.monotonic()
    coordinator = f"127.0.0.1:{_free_port()}" if count > 1 else ""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            processes.append(_start(folder, device, rank, count, coordinator, plain))
        trouble = _wait(processes, began + limit_seconds, limit_seconds)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also its coordinator and compilers
            process.wait()
    logs = {_log(rank): _tail(folder / _log(rank)) for rank in range(count)} if trouble else {}
    return Ended(_read(folder), trouble, time.monotonic() - began, logs)


def _free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def _start(folder: Path, device: str, rank: int, count: int, coordinator: str, plain: bool) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", ranks.__name__, str(folder), device, str(os.getpid())]
    variables = {
        names.ENV_RANK: str(rank),
        names.ENV_WORLD_SIZE: str(count),
        names.ENV_COORDINATOR: coordinator,
        names.ENV_BIND_ADDRESS: "127.0.0.1",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count)),
    }
    with (folder / _log(rank)).open("wb") as log:
        return subprocess.Popen(
            [*words, *([ranks.PLAIN] if plain else [])],
            env=_without_job(os.environ) | variables,
            cwd=folder,  # MindSpore leaves files where it runs
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _without_job(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a pod of a job says about its own rank, rank table and launcher."""
    return {name: value for name, value in variables.items() if not name.startswith("RESNETBOOST_")}


def _wait(processes: Sequence[subprocess.Popen[bytes]], until: float, limit_seconds: float) -> str:
    """Wait for all; return what went wrong first, '' if nothing did."""
    running = dict(enumerate(processes))
    while running:
        for rank, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[rank]
            if code < 0:
                return f"rank {rank} was ended by {signal.Signals(-code).name}"
            if code:
                return f"rank {rank} ended with exit code {code}"
        if time.monotonic() > until:
            return f"rank {', '.join(map(str, running))} did not finish within {limit_seconds:g} s"
        time.sleep(POLL_SECONDS)
    return ""


def _log(rank: int) -> str:
    return f"rank-{rank}.log"


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _read(folder: Path) -> Results | None:
    try:
        return msgspec.json.decode((folder / ranks.RESULTS).read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError):
        return None
