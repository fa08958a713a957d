"""Executes a pod's command like a container runtime. Run as a file; imports no package of ours.

usage: container.py RUNNER_PID CORE[,CORE...] COMMAND [ARGUMENT...]
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable

PR_SET_PDEATHSIG = 1  # linux/prctl.h
COMMAND_NOT_FOUND = 127  # a shell's exit code


def tied(command: Iterable[str], cores: Iterable[int]) -> list[str]:
    """The command line that executes the command on the cores and is killed when this process ends, however it does."""
    shim = [sys.executable, "-I", "-S", __file__, str(os.getpid()), ",".join(map(str, sorted(cores)))]
    return [*shim, *command]


def main(arguments: list[str]) -> int:
    """Tie this process's life to the runner's, pin it to the given cores, and execute the command."""
    runner, cores, command = int(arguments[0]), arguments[1], arguments[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != runner:  # the runner died before prctl took effect
        return 128 + signal.SIGKILL
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE, and exec would inherit that
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return COMMAND_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
