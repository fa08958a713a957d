"""Stops a Python process with SIGSTOP just before it opens or renames a given file; see halts.py.

The folder named by $HALTS has one file per place, `<name>.place`, with a pattern of "open PATH" or "os.rename PATH".
The first process that reaches a place writes its id to `<name>.pid` and stops; later ones pass.
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
