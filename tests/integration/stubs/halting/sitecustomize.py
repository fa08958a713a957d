"""Stops a Python process, as SIGSTOP does, just before it opens or renames a file that a test waits for; see halts.py.

The folder HALTS names has one file per place, `<name>.place`, with a pattern of "open PATH" or "os.rename PATH". The
first process to come to a place leaves its id in `<name>.pid` and stops; nobody stops there again.
"""

import contextlib
import os
import re
import signal
import sys
from typing import Any

FOLDER = os.environ.get("HALTS", "")


def halt(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.rename") or not isinstance(arguments[0], (str, os.PathLike)):
        return
    act = f"{event} {os.fspath(arguments[0])}"
    for name, place in PLACES:
        if place.search(act):
            with contextlib.suppress(FileExistsError):
                file = os.open(f"{FOLDER}/{name}.pid", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                os.write(file, str(os.getpid()).encode())
                os.close(file)
                os.kill(os.getpid(), signal.SIGSTOP)


def places() -> list[tuple[str, "re.Pattern[str]"]]:
    found = []
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith(".place"):
            with open(f"{FOLDER}/{name}") as file:
                found.append((name.removesuffix(".place"), re.compile(file.read())))
    return found


if FOLDER:
    PLACES = places()
    sys.addaudithook(halt)
