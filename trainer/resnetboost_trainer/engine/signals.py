"""Handles SIGTERM and SIGINT: they set a flag that all ranks agree on and interrupt nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable

# A rank in which nothing has moved for so long sits in a collective that will never end; kubelet's SIGKILL would come
# without a word, so it says what it knows first.
PATIENCE_SECONDS = 45.0


class StopRequest:
    """Set by SIGTERM or SIGINT. The training loop adds it to the step's reduction, so that all ranks leave together."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._together = False

    def install(self, moves: Callable[[], object], give_up: Callable[[], None], leave: Callable[[], None]) -> None:
        """Listen from now on; once asked to stop, `give_up` is called when `moves()` stays the same for the patience.

        Before the ranks are `together` nobody waits for this one in a step, and there is nothing to save: it may sit
        in a download or wait for others that never come, so `leave` is called at once.

        The wake-up descriptor is written by the C signal handler at once, also while the main thread is inside a
        compiled graph, where Python's own handlers do not run.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        arguments = (reader, moves, give_up, leave)
        threading.Thread(target=self._listen, args=arguments, daemon=True, name="signals").start()

    def together(self) -> None:
        """The gang has met: from now on its ranks leave together."""
        self._together = True

    def _listen(
        self, reader: int, moves: Callable[[], object], give_up: Callable[[], None], leave: Callable[[], None]
    ) -> None:
        while os.read(reader, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass
        if not self._together:
            leave()
        self._event.set()
        before: object = None
        while (now := moves()) != before:
            before = now
            time.sleep(PATIENCE_SECONDS)
        give_up()

    def __bool__(self) -> bool:
        return self._event.is_set()
