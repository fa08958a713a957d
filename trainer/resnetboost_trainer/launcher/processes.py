"""Ranks as processes, forked by the template process; the launcher speaks with it over a socket pair."""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from resnetboost_api import names

log = logging.getLogger(__name__)

# Descriptor of the socket in the template process.
ENV_TEMPLATE = "RESNETBOOST_TEMPLATE"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
KILLED = 128 + signal.SIGKILL
_MESSAGE_BYTES = 1 << 16
_TERMINATION_BYTES = 4096


def die_with(parent: int) -> None:
    """Be killed when the parent process ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(KILLED)


class RankProcess:
    """A rank forked by the template process."""

    def __init__(self, template: socket.socket, message: Path) -> None:
        self._template, self._message = template, message
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> tuple[int, str]:
        """Its exit code and termination message, '' if it left none."""
        return await self.ended, self._read_message()

    def terminate(self) -> None:
        """Ask it to stop."""
        self._send("terminate")

    def kill(self) -> None:
        """Kill it and every process of its group."""
        self._send("kill")

    def _send(self, word: str) -> None:
        with contextlib.suppress(OSError):  # the template has ended, and with it the rank
            self._template.send(json.dumps({"do": word}).encode())

    def _read_message(self) -> str:
        try:
            with self._message.open("rb") as file:
                return file.read(_TERMINATION_BYTES).decode(errors="replace")
        except OSError:
            return ""


class RankProcesses:
    """Starts ranks. The template process ends with this one, and every rank with the template process.

    `folder` is private to this launcher: configurations and termination messages of its ranks.
    """

    def __init__(self, environment: Mapping[str, str], arguments: list[str]) -> None:
        self._environment, self._arguments = dict(environment), arguments
        self.folder = Path(tempfile.mkdtemp(prefix="resnetboost-launcher-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._rank: RankProcess | None = None

    async def start(self, attempt: int, config: Mapping[str, Any] | None, coordinator_port: int | None) -> RankProcess:
        """Have the rank of an attempt forked."""
        template = self._template()
        message = self.folder / f"termination-log-{attempt}"
        changed = {names.ENV_TERMINATION_LOG: str(message)}
        if config is not None:
            changed[names.ENV_CONFIG] = str(self._written(attempt, config))
        host = self._environment.get(names.ENV_COORDINATOR, "").rpartition(":")[0]
        if host and coordinator_port is not None:
            changed[names.ENV_COORDINATOR] = f"{host}:{coordinator_port}"
        self._rank = RankProcess(template, message)
        template.send(json.dumps({"do": "start", "environment": changed}).encode())
        return self._rank

    def close(self) -> None:
        """End the template process, and with it the rank."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def reap(self) -> None:
        """Reap orphans, whose parent process 1 of a container becomes; not the template process."""
        own = self._process.pid if self._process is not None else 0
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid == own:
                return
            os.waitpid(found.si_pid, os.WNOHANG)

    def _written(self, attempt: int, config: Mapping[str, Any]) -> Path:
        path = self.folder / f"config-{attempt}.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
        return path

    def _template(self) -> socket.socket:
        """The socket to the template process, which is started if there is none."""
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**self._environment, ENV_TEMPLATE: str(theirs.fileno())}
        environment.pop(names.ENV_LAUNCHER_TOKEN, None)
        command = [sys.executable, "-m", "resnetboost_trainer", *self._arguments]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._heard, ours)
        return ours

    def _heard(self, template: socket.socket) -> None:
        """The template process says how the rank ended; if it says nothing more, it has ended, and the rank too."""
        try:
            message = template.recv(_MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message:
            asyncio.get_running_loop().remove_reader(template)
            template.close()
            self._socket = None
        if self._rank is not None and not self._rank.ended.done():
            self._rank.ended.set_result(int(json.loads(message)["exitCode"]) if message else KILLED)
