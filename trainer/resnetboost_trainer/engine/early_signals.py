"""Listens for SIGTERM from the trainer's first moment on, before anything that takes time is imported.

A container's process 1 has no default actions: the kernel drops a signal without a handler, and the pod would
then live for its whole grace.
"""

import json
import os
import signal

INTERRUPTED_EXIT_CODE = 16
MESSAGE = "asked to stop before training began; nothing was trained"


def listen() -> None:
    """Leave at once when asked to stop, until `StopRequest.install` listens instead."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> None:
    """Write the verdict without `failures`, which may be half imported."""
    rank = os.environ.get("RESNETBOOST_RANK") or os.environ.get("RESNETBOOST_INDEX") or "0"
    verdict = {"class": "Interrupted", "message": MESSAGE, "rank": int(rank) if rank.isdigit() else 0}
    try:
        with open(os.environ.get("RESNETBOOST_TERMINATION_LOG") or os.devnull, "w", encoding="utf-8") as file:
            json.dump(verdict | {"exitCode": INTERRUPTED_EXIT_CODE}, file)
    except OSError:
        pass
    os._exit(INTERRUPTED_EXIT_CODE)
