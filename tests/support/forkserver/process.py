"""A forked process in the hands of the process that asked for it, used like a `subprocess.Popen`."""

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import IO

from support import forkserver
from support.forkserver import stand_in

_NUMBER_BYTES = 16


class Forked:
    """`python ARGUMENTS` forked from the server's process for that program; its output goes to `log`.

    It is killed when this process ends, however it ends. Threads may share it.
    """

    def __init__(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: IO[bytes]
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        own = {"program": program, "environment": dict(environment), "folder": str(folder)}
        request = stand_in.request(self.args, os.getpid()) | own
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(str(forkserver.socket_path()))
        with open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
        _, pidfds, *_ = socket.recv_fds(self._connection, _NUMBER_BYTES, 1)
        if not pidfds:
            raise RuntimeError(f"the fork server is gone; its log: {forkserver.socket_path().with_name('log')}")
        (self._pidfd,) = pidfds
        self.pid = _pid(self._pidfd)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; returns its exit code. Raises `TimeoutExpired`."""
        with self._waiting:
            if self.returncode is None:
                self.returncode = self._end(timeout)
                self._connection.close()
                os.close(self._pidfd)
        return self.returncode

    def _end(self, timeout: float | None) -> int:
        self._connection.settimeout(timeout)
        try:
            ended = self._connection.recv(_NUMBER_BYTES)
        except (TimeoutError, BlockingIOError):
            raise TimeoutExpired(self.args, timeout or 0) from None
        return int(ended or -signal.SIGKILL)  # a server that is gone has killed it

    def send_signal(self, sig: int) -> None:
        """Send it a signal; does nothing once it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # its exit code is on the way
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _pid(pidfd: int) -> int:
    fields = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    return int(fields["Pid"])
