"""Shows the progress of a run: a live frame on a terminal, lines in a log."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from resnetboost_api.status import Status
from resnetboost_operator.cli.view import frame
from resnetboost_operator.cli.view import text as run_text
from resnetboost_operator.job import Job
from resnetboost_operator.planning.actions import Event

LINE_SECONDS = 5.0
EVENTS_SHOWN = 6
HINT = "Ctrl-C stops all ranks after the same step and keeps a checkpoint"
STOPPING = "stopping all ranks after this step, checkpointing… (Ctrl-C again to kill)"
KILLING = "killing all ranks"

Clock = Callable[[], float]


class Display(Protocol):
    """Interface of a display of a run's progress."""

    def show(self, status: Status) -> None:
        """Show the newest status."""

    def event(self, event: Event) -> None:
        """Show an event."""

    def notice(self, text: str) -> None:
        """Show a message to the user until the next one."""

    def close(self) -> None:
        """End the display; the last picture stays on the screen."""


def choose(job: Job, console: Console, began: float | None = None) -> Display:
    """The live display on a terminal that can redraw, else lines. NO_COLOR only removes the colours.

    `began` (unix seconds) is the start of the run's clock; default: now.
    """
    plain = not console.is_terminal or os.environ.get("TERM") in ("dumb", "unknown")
    return PlainDisplay(job, console) if plain else LiveDisplay(job, console, time.time, began)


class PlainDisplay:
    """Prints one line for every event and epoch, and every few seconds in between."""

    def __init__(self, job: Job, console: Console, clock: Clock = time.time) -> None:
        self._console = console
        self._clock = clock
        self._last_line = 0.0
        self._last_epoch: tuple[str, int, int] | None = None
        self._last_wait = ""
        self._line(run_text.headline(job))

    def show(self, status: Status) -> None:
        """Print a line if there is news and the last line is old enough."""
        progress = status.progress
        if status.phase == "Starting" and status.ranks.running == status.ranks.desired:
            self._wait(run_text.waiting(status, self._clock()))
        if status.phase != "Running" or progress is None:
            return
        epoch = (progress.stage, progress.attempt, int(progress.epoch))
        if epoch == self._last_epoch and self._clock() - self._last_line < LINE_SECONDS:
            return
        self._last_epoch = epoch
        self._line("  ".join([progress.stage, *run_text.position(progress), *run_text.figures(progress)]))

    def _wait(self, reason: str) -> None:
        if reason != self._last_wait:
            self._last_wait = reason
            self._line(reason)

    def event(self, event: Event) -> None:
        """Print the event."""
        self._line(event.message if event.type == "Normal" else f"WARNING {event.message}")

    def notice(self, text: str) -> None:
        """Print the message."""
        self._line(text)

    def close(self) -> None:
        """Do nothing: lines stay."""

    def _line(self, text: str) -> None:
        self._last_line = self._clock()
        stamp = time.strftime("%H:%M:%S", time.localtime(self._last_line))
        self._console.print(f"{stamp}  {text}", soft_wrap=True)


class LiveDisplay:
    """A frame that is redrawn in place: once a second, for the clock, and after each change."""

    def __init__(self, job: Job, console: Console, clock: Clock = time.time, began: float | None = None) -> None:
        self._job = job
        self._clock = clock
        self._began = clock() if began is None else began
        self._status = Status()
        self._notice = Text(HINT, style="dim")
        self._events: deque[frame.Line] = deque(maxlen=EVENTS_SHOWN)
        # No refresh thread: forking pods from a process with threads risks deadlocks.
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._frame, redirect_stderr=False)
        self._live.start()
        self._timer: asyncio.TimerHandle | None = None
        self._tick()

    def show(self, status: Status) -> None:
        """Draw the newest status."""
        self._status = status
        self._live.refresh()

    def event(self, event: Event) -> None:
        """Add a line at the bottom; only the newest stay."""
        self._events.append(frame.Line(self._clock(), event.message, event.type == "Warning"))
        self._live.refresh()

    def notice(self, text: str) -> None:
        """Replace the last line."""
        self._notice = Text(text, style="yellow")
        self._live.refresh()

    def close(self) -> None:
        """Draw the last frame without hints and release the terminal."""
        if self._timer is not None:
            self._timer.cancel()
        self._notice = Text()
        self._live.stop()

    def _tick(self) -> None:
        self._live.refresh()
        self._timer = asyncio.get_running_loop().call_later(1.0, self._tick)

    def _frame(self) -> frame.Frame:
        now = self._clock()
        return frame.Frame(self._job, self._status, tuple(self._events), self._notice, now, now - self._began)
