"""Cuts MindSpore's sleeps short while a gang joins.

A rank on a CPU looks for each other's address, and sleeps for 3 s where one is missing (`SynchronizeAddresses` in
MindSpore's ms_collective_node.cc). Ranks get there within moments of each other, so nearly every gang lost those
seconds. MindSpore calls sleep(3), which a signal ends.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# MindSpore looks whether the gang is complete 0.05 s after it begins and then every 0.5 s; addresses follow at once.
# It gives up after 19 sleeps, so they must not be much shorter: these wait 18 s for an address.
FIRST_SECONDS, INTERVAL_SECONDS = 0.65, 1.0


@contextmanager
def short_sleeps() -> Iterator[None]:
    """Interrupt sleep() in this block every INTERVAL_SECONDS; in the main thread only, which alone gets signals.

    By a timer of the kernel: MindSpore keeps other Python threads from running while it sleeps.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, FIRST_SECONDS, INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
