"""MindSpore's rendezvous process (MS_SCHED): a child process of rank 0 that ends with its parent.

A child instead of a sidecar: one container per pod, and kubelet cannot restart it behind the gang's back. Where a
launcher's template process forks rank 0, it forks the coordinator beside it and ends it with the rank.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def start(variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the coordinator with MindSpore's own variables (MS_SCHED_HOST, MS_SCHED_PORT, MS_WORKER_NUM)."""
    environment = {**os.environ, **variables, "MS_ROLE": "MS_SCHED", "OMP_NUM_THREADS": "1"}
    environment.pop("MS_NODE_ID", None)
    # A group of its own: a terminal's Ctrl-C must reach it no sooner than the ranks.
    command = [sys.executable, "-m", "resnetboost_trainer.distributed.coordinator", str(os.getpid())]
    return subprocess.Popen(command, env=environment, process_group=0, stdin=subprocess.DEVNULL)


def die_with(parent: int) -> None:
    """SIGKILL of rank 0 leaves no chance to clean up; the kernel does it. In a pod rank 0 is process 1."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # it died before prctl took effect


def run_forked(parent: int, variables: Mapping[str, str]) -> NoReturn:
    """Be the coordinator, in a process forked by one that has imported MindSpore."""
    die_with(parent)
    os.setpgid(0, 0)
    os.environ.update(variables, MS_ROLE="MS_SCHED", OMP_NUM_THREADS="1")
    os.environ.pop("MS_NODE_ID", None)
    try:
        _serve()
    finally:
        os._exit(1)


def main() -> None:
    """Serve the rendezvous until rank 0 ends this process."""
    die_with(int(sys.argv[1]))
    _serve()


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import mindspore
    from mindspore.communication import init

    mindspore.set_device("CPU")
    init()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
