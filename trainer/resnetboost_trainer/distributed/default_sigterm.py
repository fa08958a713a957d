"""Leaves SIGTERM to the kernel while MindSpore lets no Python run."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def default_sigterm() -> Iterator[None]:
    """End this process at once on SIGTERM in this block; in the main thread only.

    MindSpore waits for the other ranks of a gang without letting Python's threads run, for ever if one of them never
    comes. The launcher makes the exit code what it would have been (launcher/processes.py). The kernel ends no process
    1 in this way: without a launcher a rank in a container waits until it is killed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
