"""Handles SIGTERM from the start of the process, before the slow imports.

Process 1 of a container has no default actions: the kernel drops a signal without a handler, and the pod would run
until the end of its grace period.
"""

import json
import os
import signal

INTERRUPTED_EXIT_CODE = 16
MESSAGE = "asked to stop before training began; nothing was trained"


def listen() -> None:
    """Exit at once on SIGTERM, until `StopRequest.install` replaces the handler."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> None:
    write_message(os.environ.get("RESNETBOOST_TERMINATION_LOG") or os.devnull)
    os._exit(INTERRUPTED_EXIT_CODE)


def write_message(path: str) -> None:
    """Write the termination message without `failures`, which may be only half imported. Never fails."""
    rank = os.environ.get("RESNETBOOST_RANK") or os.environ.get("RESNETBOOST_INDEX") or "0"
    verdict = {"class": "Interrupted", "message": MESSAGE, "rank": int(rank) if rank.isdigit() else 0}
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(verdict | {"exitCode": INTERRUPTED_EXIT_CODE}, file)
    except OSError:
        pass
