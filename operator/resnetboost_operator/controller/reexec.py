"""Exits after an error, or restarts the program in the same process.

Kubelet's back-off before a container's restart grows to five minutes, during which no operator may lead.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from typing import NoReturn

from resnetboost_operator.kubeclient.retry import Backoff

# Consecutive restarts of this process; a run of STABLE_SECONDS resets the count.
_FAILURES = "_RESNETBOOST_OPERATOR_FAILURES"
STABLE_SECONDS = 120.0
# Shorter than a liveness probe tolerates: nothing responds to it meanwhile.
BACKOFF = Backoff(first_seconds=1.0, most_seconds=15.0)
_begun = time.monotonic()


def leave(start_over: bool) -> NoReturn:
    """Exit or restart at once, without cleanup: only a new process can finish the work safely."""
    if not start_over:
        with contextlib.suppress(OSError):
            logging.shutdown()
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):  # the event loop, which handled them, does not run any more
        signal.signal(number, lambda *_: os._exit(1))
    failures = failures_in_a_row(os.environ.get(_FAILURES, ""), time.monotonic() - _begun)
    time.sleep(BACKOFF.delay_seconds(failures))
    os.environ[_FAILURES] = str(failures)
    with contextlib.suppress(OSError):
        logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def failures_in_a_row(before: str, ran_seconds: float) -> int:
    """Consecutive failures including this one; `before` is the count from the environment."""
    return 1 if ran_seconds >= STABLE_SECONDS or not before.isdigit() else int(before) + 1
