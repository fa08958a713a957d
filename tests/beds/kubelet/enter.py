"""Runs a command in the namespaces of another process and passes signals on to it; run as a program.

`enter.py PID COMMAND...`. However it ends, the command ends too.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Enter the namespaces, run the command, and exit as it does."""
    folder = os.getcwd()
    enter(sys.argv[1])
    os.chdir(folder)
    child = os.fork()
    if child == 0:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(sys.argv[2], sys.argv[2:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda given, _: os.kill(child, given))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


def enter(process: str) -> None:
    """Join all namespaces; mounts come last, because they replace /proc."""
    found = [os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY) for kind in ("net", "pid", "mnt")]
    for namespace in found:
        if _libc.setns(namespace, 0):
            sys.exit(f"cannot enter the namespaces of {process}: {os.strerror(ctypes.get_errno())}")
        os.close(namespace)


if __name__ == "__main__":
    main()
