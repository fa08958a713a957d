"""Runs job.yaml from Python in the folder `out` and interrupts itself as Ctrl-C does: once, or again while it stops.

Prints how many threads are left after the KeyboardInterrupt. A process of its own: an interrupt that comes a moment
late would end the process that runs the tests.
"""

import os
import signal
import sys
import threading

from resnetboost import Job, Status

left = list(("Running", "Suspending")[: int(sys.argv[1])])


def interrupt(status: Status) -> None:
    """Send Ctrl-C at the third step, and again in the next phase that is left."""
    if left and status.phase == left[0] and status.progress is not None and status.progress.step >= 3:
        left.pop(0)
        os.kill(os.getpid(), signal.SIGINT)


try:
    Job.load("job.yaml").run("out", progress=False, on_status=interrupt)
except KeyboardInterrupt:
    print("interrupted, threads:", threading.active_count())
