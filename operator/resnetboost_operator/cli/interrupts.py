"""Ctrl-C and other signals of commands that stop in order: the first one stops, each later one kills."""

import asyncio
import signal
from collections.abc import Callable

from resnetboost_operator.cli.output import Output


def listen(output: Output, stop: Callable[[], None], kill: Callable[[], None]) -> None:
    """Install the signal handlers in the running loop; an ignored signal (nohup) stays ignored.

    A hang-up also closes the `output`, since its terminal is gone.
    """
    count = 0

    def interrupt(number: int) -> None:
        nonlocal count
        count += 1
        if number == signal.SIGHUP:
            output.close()
        if count == 1:
            stop()
        else:
            kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
