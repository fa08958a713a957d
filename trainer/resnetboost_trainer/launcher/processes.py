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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from resnetboost_api import failures, names
from resnetboost_trainer.engine import early_signals
from resnetboost_trainer.launcher import memory_events
from resnetboost_trainer.launcher.ranklog import RankLog
from resnetboost_trainer.scratch import Scratch

log = logging.getLogger(__name__)

# Set in the template process, whose standard input is the socket to its launcher.
ENV_TEMPLATE = "RESNETBOOST_TEMPLATE"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
KILLED = 128 + signal.SIGKILL
TERMINATED = 128 + signal.SIGTERM
_MESSAGE_BYTES = 1 << 16
_TERMINATION_BYTES = 4096


def die_with(parent: int) -> None:
    """Be killed when the parent process ends, however that happens."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(KILLED)


class _Template(msgspec.Struct, frozen=True):
    """A template process, and the socket to it."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def send(self, message: Mapping[str, Any], *descriptors: int) -> None:
        """Send a message, with open files. Raises OSError if the process has ended."""
        socket.send_fds(self.socket, [json.dumps(message).encode()], descriptors)


class RankProcess:
    """A rank forked by the template process."""

    def __init__(self, template: "_Template", message: Path, written: RankLog) -> None:
        self._template, self._message, self._log = template, message, written
        self._pidfd = -1
        self._oom_kills = memory_events.oom_kills()
        self.forked = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def started(self) -> None:
        """Return when its process exists, or never will."""
        await self.forked.wait()

    async def wait(self) -> tuple[int, str]:
        """Its exit code and termination message; that of one that failed without a word is the end of its log, or that
        it was killed for memory.
        """
        exit_code = await self.ended
        if exit_code == TERMINATED:  # by default: it was meeting its gang (distributed/default_sigterm.py)
            return early_signals.INTERRUPTED_EXIT_CODE, ""
        if exit_code == KILLED and memory_events.oom_kills() > self._oom_kills:
            return exit_code, json.dumps({"class": failures.OUT_OF_MEMORY.name})
        tail = await self._log.tail()
        return exit_code, self._read_message() or (tail if exit_code != 0 else "")

    def terminate(self) -> None:
        """Ask it to stop; one that does not exist yet never will: importing MindSpore takes seconds."""
        if self.forked.is_set():
            self._send("terminate")
        else:
            self.finish(early_signals.INTERRUPTED_EXIT_CODE)
            self._template.process.kill()

    def kill(self) -> None:
        """Kill it and every process of its group."""
        self._send("kill")

    def _send(self, word: str) -> None:
        with contextlib.suppress(OSError):  # the template has ended, and with it the rank
            self._template.send({"do": word})

    def exists(self, pid: int) -> None:
        """Its process exists."""
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._pidfd = os.pidfd_open(pid)
        self.forked.set()

    def finish(self, exit_code: int) -> None:
        """It was reaped, or never was."""
        self.forked.set()
        if not self.ended.done():
            self.ended.set_result(exit_code)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def orphaned(self) -> None:
        """The template process has ended. The kernel kills the rank; it counts as ended when that has happened."""
        if self._pidfd < 0:
            self.finish(KILLED)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        asyncio.get_running_loop().add_reader(self._pidfd, self._gone)

    def _gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.finish(KILLED)

    def _read_message(self) -> str:
        try:
            with self._message.open("rb") as file:
                return file.read(_TERMINATION_BYTES).decode(errors="replace")
        except OSError:
            return ""


class RankProcesses:
    """Starts ranks. The template process ends with this one, and every rank with the template process.

    Their configurations and termination messages are in a folder private to this launcher.
    """

    def __init__(self, environment: Mapping[str, str], arguments: list[str]) -> None:
        self._environment, self._arguments = dict(environment), arguments
        self._scratch = Scratch("resnetboost-launcher-")
        self._template: _Template | None = None
        self._rank: RankProcess | None = None

    async def start(self, attempt: int, config: Mapping[str, Any] | None, coordinator_port: int | None) -> RankProcess:
        """Have the rank of an attempt forked."""
        template = self._living_template()
        message = self._scratch.path / f"termination-log-{attempt}"
        changed = {names.ENV_TERMINATION_LOG: str(message)}
        if config is not None:
            changed[names.ENV_CONFIG] = str(self._written(attempt, config))
        host = self._environment.get(names.ENV_COORDINATOR, "").rpartition(":")[0]
        if host and coordinator_port is not None:
            changed[names.ENV_COORDINATOR] = f"{host}:{coordinator_port}"
        written = RankLog()
        self._rank = RankProcess(template, message, written)
        try:
            template.send({"do": "start", "environment": changed}, written.writing)
        except OSError as error:
            log.warning("launcher: the template process has ended: %s", error)
            self._rank.finish(KILLED)
        finally:
            os.close(written.writing)  # the rank alone has it now
        return self._rank

    def close(self) -> None:
        """End the template process, and with it the rank; remove the folder."""
        if self._template is not None:
            self._template.process.kill()
            self._template.process.wait()
        self._scratch.remove()

    def reap(self) -> None:
        """Reap orphans, whose parent process 1 of a container becomes; not the template process."""
        living = self._template is not None and self._template.process.returncode is None
        own = self._template.process.pid if self._template is not None and living else 0
        with contextlib.suppress(ChildProcessError):  # there is none left
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid == own and self._template is not None:
                    self._template.process.poll()
                    continue
                os.waitpid(found.si_pid, os.WNOHANG)

    def _written(self, attempt: int, config: Mapping[str, Any]) -> Path:
        path = self._scratch.path / f"config-{attempt}.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
        return path

    def _living_template(self) -> _Template:
        """The template process, started if there is none."""
        if self._template is None or self._template.process.poll() is not None:
            self._template = self._started_template()
        return self._template

    def _started_template(self) -> _Template:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**self._environment, ENV_TEMPLATE: "1"}
        environment.pop(names.ENV_LAUNCHER_TOKEN, None)
        command = [sys.executable, "-m", "resnetboost_trainer", *self._arguments]
        with theirs:
            template = _Template(subprocess.Popen(command, env=environment, stdin=theirs.fileno()), ours)
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._heard, template)
        return template

    def _heard(self, template: _Template) -> None:
        """The template process says that the rank started, and how it ended; its own end is the rank's too."""
        try:
            text = template.socket.recv(_MESSAGE_BYTES)
        except OSError:
            text = b""
        rank = self._rank if template is self._template else None  # an earlier one has nothing to say of this rank
        if not text:
            asyncio.get_running_loop().remove_reader(template.socket)
            template.socket.close()
            template.process.kill()
            if rank is not None:
                rank.orphaned()
            return
        message = json.loads(text)
        if rank is not None and "started" in message:
            rank.exists(message["started"])
        if rank is not None and "exitCode" in message:
            rank.finish(message["exitCode"])
