"""The template process: imports MindSpore once and forks ranks, which so start without the import.

A fork shares the import's 480 MB until it writes to them. What is forked has no device, no context and no tensor yet:
MindSpore allows that on CPUs (tested with its version). On other devices, whose runtimes may start threads at import,
nothing is imported and each rank is a new program. Either way a rank dies with this process, and this process with its
launcher.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from resnetboost_api import names
from resnetboost_trainer import config
from resnetboost_trainer.distributed import communicator, coordinator
from resnetboost_trainer.engine import early_signals
from resnetboost_trainer.failures import CommunicationError, ConfigError
from resnetboost_trainer.launcher.processes import ENV_TEMPLATE, die_with

# What makes a rank's start slow. Importing them makes no tensor and sets no device.
_IMPORTED = (
    "mindspore.nn",
    "mindspore.ops",
    "mindspore.communication",
    "mindspore.dataset",
    "prometheus_client",
    "safetensors.numpy",
    "resnetboost_trainer.checkpoint.pretrained",
    "resnetboost_trainer.data.registry",
)
_MESSAGE_BYTES = 1 << 16


class Template:
    """Forks at most one rank at a time, and beside that of index 0 the gang's coordinator."""

    def __init__(self, launcher: socket.socket, forks: bool) -> None:
        self._launcher, self._forks = launcher, forks
        self._rank: int | None = None
        self._coordinator: int | None = None
        self._pidfd = -1
        self._selector = selectors.DefaultSelector()
        self._selector.register(launcher, selectors.EVENT_READ)

    def serve(self) -> dict[str, str] | None:
        """Serve the launcher. Returns in a forked rank with what changes in its environment; never in this process."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._launcher:
                    self._reap()
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._launcher, _MESSAGE_BYTES, 1)
                if not message:
                    self._kill()
                    os._exit(0)
                request = json.loads(message)
                if request["do"] == "start":
                    if self._fork(request["environment"], descriptors):
                        return dict(request["environment"])
                elif request["do"] == "terminate" and self._rank is not None:
                    os.kill(self._rank, signal.SIGTERM)
                elif request["do"] == "kill":
                    self._kill()

    def _fork(self, environment: dict[str, str], standard_error: list[int]) -> bool:
        """Fork the rank, with that standard error. Returns True in it."""
        if self._forks:
            self._coordinator = _fork_coordinator({**os.environ, **environment})
        if self._coordinator is not None:
            environment[config.COORDINATOR_RUNS] = "1"
        # A signal for the rank must not meet the handlers of this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        parent = os.getpid()
        self._rank = os.fork()
        if self._rank == 0:
            die_with(parent)
            os.setpgid(0, 0)
            _use(standard_error)
            early_signals.listen()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            self._selector.close()
            self._launcher.close()
            return True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for descriptor in standard_error:  # at its end of file the rank and all of its processes have ended
            os.close(descriptor)
        with contextlib.suppress(OSError):  # it may have left the race already
            os.setpgid(self._rank, self._rank)
        self._pidfd = os.pidfd_open(self._rank)
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        self._tell({"started": self._rank})
        return False

    def _tell(self, news: Mapping[str, int]) -> None:
        with contextlib.suppress(OSError):  # without a launcher this process ends at once
            self._launcher.send(json.dumps(news).encode())

    def _kill(self) -> None:
        """Kill the rank's group. It is not reaped yet, so that its number belongs to no other process."""
        if self._rank is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._rank, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rank, signal.SIGKILL)

    def _reap(self) -> None:
        """The rank has ended: kill what is left of its group, and say how it ended."""
        assert self._rank is not None
        self._kill()
        status = os.waitpid(self._rank, 0)[1]
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        self._rank = None
        if self._coordinator is not None:
            os.kill(self._coordinator, signal.SIGKILL)
            os.waitpid(self._coordinator, 0)
            self._coordinator = None
        code = os.waitstatus_to_exitcode(status)
        self._tell({"exitCode": code if code >= 0 else 128 - code})


def main(arguments: list[str]) -> dict[str, str]:
    """Serve the launcher. Returns in each forked rank what changes in its environment."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher says what to do
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.pop(ENV_TEMPLATE)
    launcher = _socket_of_stdin()
    die_with(os.getppid())
    forks = _device_type(arguments) == "CPU"
    if forks:
        _import()
    changed = Template(launcher, forks).serve()
    assert changed is not None
    if not forks:
        _execute(changed, arguments)
    return changed


def _socket_of_stdin() -> socket.socket:
    """The socket to the launcher; ranks find nothing at their standard input."""
    found = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    return found


def _use(standard_error: list[int]) -> None:
    for descriptor in standard_error:
        os.dup2(descriptor, 2)
        os.close(descriptor)


def _device_type(arguments: list[str]) -> str:
    """The device type of the container's configuration. One that is wrong fails in the rank, without an import."""
    try:
        return config.load(Path(arguments[0] if arguments else os.environ[names.ENV_CONFIG])).device.type
    except (KeyError, ConfigError):
        return ""


def _import() -> None:
    """Import what ranks need. Whatever fails here fails in the rank again, where it is reported."""
    os.environ.setdefault("GLOG_v", "3")
    for name in _IMPORTED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise the collector would copy the pages that processes share


def _fork_coordinator(environment: Mapping[str, str]) -> int | None:
    """Fork the gang's coordinator beside the rank of index 0, if the gang needs one. Returns its process id."""
    try:
        found = config.environment(environment)
    except ConfigError:
        return None  # the rank will say so
    if found.coordinator is None or found.rank != 0:
        return None
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            variables = communicator.scheduler_variables(found.coordinator, found.world_size)
        except CommunicationError:
            os._exit(1)  # the rank fails the same way, and says so
        coordinator.run_forked(parent, variables)
    return pid


def _execute(changed: dict[str, str], arguments: list[str]) -> NoReturn:
    """Become a rank as a new program. It still dies with the template process."""
    command = [sys.executable, "-m", "resnetboost_trainer", *(arguments if names.ENV_CONFIG not in changed else ())]
    os.execve(sys.executable, command, {**os.environ, **changed})
