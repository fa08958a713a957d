"""Ends the processes and removes the folder of an owner that is gone, even by SIGKILL; a program of its own.

It leads the process group of the processes it guards, so the group's number cannot pass to strangers while it lives.
"""

import os
import shutil
import signal
import sys
import time


def main() -> None:
    """Wait for the end of stdin, which only the owner holds open; then end the group and remove the folders given."""
    group = os.getpid()
    sys.stdin.buffer.read()
    if os.fork() == 0:  # in a group of its own, to outlive the one that ends
        os.setpgid(0, 0)
        os.killpg(group, signal.SIGKILL)
        for folder in sys.argv[1:]:
            remove(folder)


def remove(folder: str) -> None:
    """Remove a folder in which a dying process may still be writing."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main()
