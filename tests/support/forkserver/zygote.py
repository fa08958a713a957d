"""Imports a program's third-party modules, such as MindSpore, without using them, and forks a process per request.

usage: python -m support.forkserver.zygote PROGRAM DESCRIPTOR, of a socket to the hub; ends with its processes when that
is closed.
"""

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

from support.forkserver import forked
from support.forkserver.hub import DESCRIPTORS, MESSAGE_BYTES

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass
class Process:
    """A forked process, and the connection to its client."""

    pid: int
    pidfd: int
    connection: socket.socket

    def kill(self) -> None:
        """Kill it and its process group, but not children in other groups."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has not made the group yet
            os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """Forks and reports how each fork ended; kills the process of a client that disconnects."""

    def __init__(self, hub: socket.socket) -> None:
        self._hub = hub
        self._selector = selectors.DefaultSelector()
        self._selector.register(hub, selectors.EVENT_READ, None)
        self._processes: dict[int, Process] = {}

    def serve(self) -> forked.Request | None:
        """Serve requests. Returns the request in each forked process, and None in this one when the hub is gone."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    message, descriptors, *_ = socket.recv_fds(self._hub, MESSAGE_BYTES, DESCRIPTORS + 1)
                    if not message:
                        self._kill_all()
                        return None
                    request = self._fork(json.loads(message), descriptors)
                    if request is not None:
                        return request
                elif key.data in self._processes:
                    self._look_after(self._processes[key.data], key.fd)

    def _fork(self, message: dict[str, Any], descriptors: list[int]) -> forked.Request | None:
        *streams, last = descriptors
        connection, parent = socket.socket(fileno=last), os.getpid()
        pid = os.fork()
        if pid == 0:
            _die_with(parent)
            os.setsid()
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
                os.close(descriptor)
            self._close(connection)
            return forked.Request(**message)
        for descriptor in streams:
            os.close(descriptor)
        process = Process(pid, os.pidfd_open(pid), connection)
        self._processes[pid] = process
        self._selector.register(process.pidfd, selectors.EVENT_READ, pid)
        self._selector.register(connection, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):  # it has disconnected: select will report it
            socket.send_fds(connection, [b"forked"], [process.pidfd])
        return None

    def _look_after(self, process: Process, descriptor: int) -> None:
        if descriptor != process.pidfd:  # clients send nothing, so readable means disconnected
            process.kill()
            self._selector.unregister(process.connection)
            process.connection.close()
            return
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        if process.connection.fileno() >= 0:
            self._selector.unregister(process.connection)
            with contextlib.suppress(OSError):
                process.connection.send(str(code).encode())
            process.connection.close()
        del self._processes[process.pid]

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _close(self, connection: socket.socket) -> None:
        """Close all of the server's descriptors in a forked process."""
        self._selector.close()
        self._hub.close()
        connection.close()
        for process in self._processes.values():
            os.close(process.pidfd)
            process.connection.close()


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def main() -> None:
    """Import the modules, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is meant for the clients
    forked.warm_up(sys.argv[1])
    gc.collect()
    gc.freeze()  # otherwise the collector would copy the pages that processes share
    request = Zygote(socket.socket(fileno=int(sys.argv[2]))).serve()
    if request is not None:
        forked.run(request)


if __name__ == "__main__":
    main()
