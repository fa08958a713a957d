"""Becomes a pod's container, as a runtime does between fork and exec. Run as a file; imports no package.

usage: container.py RUNNER_PID CORE[,CORE...] COMMAND [ARGUMENT...]
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
COMMAND_NOT_FOUND = 127  # what a shell says


def main(arguments: list[str]) -> int:
    """Tie this process' life to the runner's, keep to the given cores, and become the command."""
    runner, cores, command = int(arguments[0]), arguments[1], arguments[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != runner:  # it died before prctl took effect
        return 128 + signal.SIGKILL
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would hand that down
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return COMMAND_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
