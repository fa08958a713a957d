"""Kills a process group and removes folders when their owner closes stdin or dies, even by SIGKILL; run as a program.

It prints the id of the process group that the owner puts its processes into.
"""

import os
import shutil
import signal
import sys
import time


def main() -> None:
    """Guard a group of processes and the folders given."""
    group = start_group()
    print(group, flush=True)
    wait_for_owner()
    os.killpg(group, signal.SIGKILL)
    os.waitpid(group, 0)
    for folder in sys.argv[1:]:
        remove(folder)


def start_group() -> int:
    """Start a process group led by a child of this process, so that its id is not reused before we wait for it."""
    leader = os.fork()
    if leader == 0:
        wait_for_owner()
        os._exit(0)
    os.setpgid(leader, leader)
    return leader


def wait_for_owner() -> None:
    """Wait for the end of stdin, which only the owner holds open and never writes to."""
    sys.stdin.buffer.read()


def remove(folder: str) -> None:
    """Remove a folder in which a dying process may still write files."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main()
