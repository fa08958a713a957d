"""Launchers as processes, with real ranks, and the operator's end of their connection."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from resnetboost_api import names
from resnetboost_api.connection import Broken, Connection, connect
from resnetboost_api.launcher import GangReport, HelloOperator
from resnetboost_trainer.launcher.leading import keep_alive

TOKEN = b"token of this gang"
PORT = names.PORT_LAUNCHER
SECONDS = 60.0


def address() -> str:
    """A loopback address of a test's own, because launchers all listen on one port."""
    return f"127.{random.randrange(100, 250)}.{random.randrange(1, 250)}.{random.randrange(1, 250)}"


class Process:
    """A launcher whose rank trains; of a gang of one, unless `more` variables say otherwise. Its log is `log`."""

    def __init__(self, folder: Path, host: str, config: Mapping[str, Any], **more: str) -> None:
        self.host = host
        (folder / "token").write_bytes(TOKEN)
        (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
        self.message = folder / "termination-log"
        environment = {
            **os.environ,
            names.ENV_CONFIG: str(folder / "config.yaml"),
            names.ENV_LAUNCHER_TOKEN: str(folder / "token"),
            names.ENV_TERMINATION_LOG: str(self.message),
            names.ENV_CHECKPOINTS: str(folder / "checkpoints"),
            names.ENV_BIND_ADDRESS: host,
            **more,
        }
        command = [sys.executable, "-m", "resnetboost_trainer"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=folder, stderr=log, start_new_session=True)

    def children(self) -> list[int]:
        """Process ids of the launcher's descendants."""
        found, parents = [], [self.process.pid]
        while parents:
            pid = parents.pop()
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
                mine = [int(word) for word in text.split()]
                found += mine
                parents += mine
        return found

    def end(self) -> None:
        """Kill it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def operator_of(host: str) -> Connection:
    """The connection of an operator, which keeps itself alive."""
    while True:
        try:
            connection = await connect(host, PORT, TOKEN, HelloOperator())
        except Broken:
            await asyncio.sleep(0.05)
        else:
            _ALIVE.add(asyncio.create_task(keep_alive(connection)))
            return connection


_ALIVE: set[asyncio.Task[None]] = set()


async def reported(connection: Connection, holds: Callable[[GangReport], bool]) -> GangReport:
    """The first report for which that holds."""
    while True:
        message = await connection.receive()
        if isinstance(message, GangReport) and holds(message):
            return message
