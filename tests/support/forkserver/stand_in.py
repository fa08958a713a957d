"""Stands in for a rank forked by the fork server: same streams and exit code, and passes signals on.

Run as a file, `stand_in.py ARGUMENTS` or, by package/, for `python -m resnetboost_trainer ...`; imports no package. The
rank dies with this process, also by SIGKILL, and this process with its parent.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SERVER_GONE = 125


class StandIn:
    """One rank, from the request to its end."""

    def __init__(self) -> None:
        self._pidfd: int | None = None
        self._early: list[int] = []

    def run(self, arguments: list[str]) -> NoReturn:
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
        for passed_on in PASSED_ON:
            signal.signal(passed_on, self._pass_on)
        path = os.environ["FORK_SERVER"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            socket.send_fds(connection, [json.dumps(request(arguments, parent)).encode()], [0, 1, 2])
            _, pidfds, *_ = socket.recv_fds(connection, 16, 1)
            if pidfds:
                (self._pidfd,) = pidfds
                for number in self._early:
                    self._pass_on(number)
            ended = connection.recv(16)
        if not ended:
            _fail(path)
        leave(int(ended))

    def _pass_on(self, number: int, *_: Any) -> None:
        if self._pidfd is None:
            self._early.append(number)
        else:
            with contextlib.suppress(ProcessLookupError):  # it has ended: its exit code follows
                signal.pidfd_send_signal(self._pidfd, number)


def request(arguments: list[str], parent: int) -> dict[str, Any]:
    """State of this process that the forked process takes over."""
    with open("/proc/self/status", encoding="utf-8") as status:  # os.umask would change it for all threads
        umask = next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    return {
        "program": "rank",
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "umask": umask,
        "parent": parent,
    }


def leave(code: int) -> NoReturn:
    """Exit as the rank did; `code` is negative for a signal, as in subprocess."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _fail(path: str) -> NoReturn:
    try:
        with open(os.path.join(os.path.dirname(path), "log"), encoding="utf-8") as file:
            told = file.read()
    except OSError as error:
        told = str(error)
    print(f"the fork server is gone; its log:\n{told}", file=sys.stderr, flush=True)
    os._exit(SERVER_GONE)


if __name__ == "__main__":
    StandIn().run(sys.argv[1:])
