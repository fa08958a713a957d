"""Leaves after an error: to whoever started this process, or into the same process begun anew.

Kubelet waits ever longer before it starts a container again, up to five minutes; meanwhile nobody leads.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from typing import NoReturn

from resnetboost_operator.kubeclient.retry import Backoff

# How often in a row this process has begun anew; what ran for so long counts as well.
_FAILURES = "_RESNETBOOST_OPERATOR_FAILURES"
STABLE_SECONDS = 120.0
# Less than a liveness probe waits: nothing answers it meanwhile.
BACKOFF = Backoff(first_seconds=1.0, most_seconds=15.0)
_begun = time.monotonic()


def leave(start_over: bool) -> NoReturn:
    """End at once, with nothing tidied up: what is half done is safe with the next process and nowhere else."""
    if not start_over:
        with contextlib.suppress(OSError):
            logging.shutdown()
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):  # the event loop, which would hear of it, does not run any more
        signal.signal(number, lambda *_: os._exit(1))
    failures = failures_in_a_row(os.environ.get(_FAILURES, ""), time.monotonic() - _begun)
    time.sleep(BACKOFF.delay_seconds(failures))
    os.environ[_FAILURES] = str(failures)
    with contextlib.suppress(OSError):
        logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def failures_in_a_row(before: str, ran_seconds: float) -> int:
    """With this one; `before` is what the last life left in the environment."""
    return 1 if ran_seconds >= STABLE_SECONDS or not before.isdigit() else int(before) + 1
