"""Runs what looks at something until it is over or a signal comes, and tidies up; for commands that change nothing."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """The work's exit code, or that of a command ended by a signal, once the work has tidied up."""
    loop, task, caught = asyncio.get_running_loop(), asyncio.ensure_future(work), list[int]()

    def interrupt(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, interrupt, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not caught:
            raise
        return 128 + caught[0]
