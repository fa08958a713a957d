"""Handles SIGTERM and SIGINT: sets a flag, so that all ranks stop after the same step."""

import os
import signal
import threading
import time
from collections.abc import Callable

# A rank without progress for so long is stuck in a collective that will never end. It exits before kubelet's SIGKILL,
# so that there is a message.
PATIENCE_SECONDS = 45.0


class StopRequest:
    """Flag set by SIGTERM or SIGINT. The training loop reduces it over the gang, so that all ranks leave together."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._together = False

    def install(self, moves: Callable[[], object], give_up: Callable[[], None], leave: Callable[[], None]) -> None:
        """Install the handlers. After a signal, `give_up` is called if `moves()` does not change for the patience.

        Before the ranks are `together` no other rank waits for this one in a step, and there is nothing to save: it may
        be in a download or wait for others that never come, so `leave` is called at once.

        The C signal handler writes the wake-up descriptor at once, also while the main thread is inside a compiled
        graph, where Python's own handlers do not run.
        """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        arguments = (reader, moves, give_up, leave)
        threading.Thread(target=self._listen, args=arguments, daemon=True, name="signals").start()

    def together(self) -> None:
        """Note that the gang is complete: from now on its ranks leave together."""
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
