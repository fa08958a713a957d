"""A rank's standard error on its way through the launcher, which keeps the end of it."""

import asyncio
import contextlib
import os
import threading

TAIL_BYTES = 2048
# How long a dead rank's log is waited for: only if its reader is slow, or a process that left its group lives on.
END_SECONDS = 2.0
_CHUNK_BYTES = 1 << 16
_STANDARD_ERROR = 2


class RankLog:
    """Passes on, unchanged and at once, whatever is written into `writing`, the end of a pipe that the rank gets.

    In a thread of its own: a slow reader of the launcher's log slows the rank, as without a launcher, and nobody else.
    """

    def __init__(self, target: int = _STANDARD_ERROR) -> None:
        reading, self.writing = os.pipe()
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._pass_on, args=(reading, target), daemon=True).start()

    async def tail(self) -> str:
        """The last TAIL_BYTES as text, once all was passed on. To be called when the rank has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._ended.wait()
        return self._tail.decode(errors="replace")

    def _pass_on(self, reading: int, target: int) -> None:
        try:
            while data := os.read(reading, _CHUNK_BYTES):
                self._tail = (self._tail + data)[-TAIL_BYTES:]
                with contextlib.suppress(OSError):  # without a reader the rank goes on all the same
                    _write(target, data)
        finally:
            os.close(reading)
            with contextlib.suppress(RuntimeError):  # the launcher has ended
                self._loop.call_soon_threadsafe(self._ended.set)


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]
