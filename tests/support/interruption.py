"""Kills a function at any of its removals of files."""

import os
import sys
from collections.abc import Callable

_REMOVALS = ("os.remove", "os.rmdir", "shutil.rmtree")
_KILLED = 9


def killed_at_removal(number: int, work: Callable[[], object]) -> bool:
    """Call `work` in a process that ends right before its removal of that number; True if `work` ended before it."""
    process = os.fork()
    if process == 0:
        removals = 0

        def hook(event: str, _: object) -> None:
            nonlocal removals
            if event in _REMOVALS:
                removals += 1
                if removals > number:
                    os._exit(_KILLED)

        sys.addaudithook(hook)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)  # it raised
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, _KILLED)
    return code == 0
