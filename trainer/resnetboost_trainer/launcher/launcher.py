"""One launcher: takes commands, starts and ends its rank, and reports. Many of them may run in one process.

The leader also serves the others and the operator (`leading`); the others follow it (`following`).
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from resnetboost_api.launcher import StartAttempt
from resnetboost_trainer.launcher.following import Following
from resnetboost_trainer.launcher.leading import Leading
from resnetboost_trainer.launcher.state import Exit, Kill, LauncherState, Start, Terminate, Wait

log = logging.getLogger(__name__)


class Rank(Protocol):
    """A rank that was started."""

    async def wait(self) -> tuple[int, str]:
        """Its exit code (128 + the signal for a killed one) and termination message, once it is reaped."""
        ...

    def terminate(self) -> None:
        """Ask it to stop."""
        ...

    def kill(self) -> None:
        """Kill it and every process of its group."""
        ...


class Ranks(Protocol):
    """Starts ranks. Never has two at a time."""

    async def start(self, attempt: int, config: Mapping[str, Any] | None, coordinator_port: int | None) -> Rank:
        """Start the rank of an attempt."""
        ...


class Launcher:
    """The launcher of one index in a gang of `size`. `run` returns the exit code of the container."""

    def __init__(self, index: int, size: int, attempt: int, ranks: Ranks) -> None:
        self.index, self.size = index, size
        self._state = LauncherState(index, attempt)
        self._ranks = ranks
        self._rank: Rank | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._command: StartAttempt | None = None
        self._link: Leading | Following | None = None
        self._terminated = False
        self._message = ""

    def lead(self, address: str, port: int, token: bytes) -> None:
        """Serve the gang and the operator while this launcher runs."""
        self._link = Leading(address, port, token, self.size, self)

    def follow(self, host: str, port: int, token: bytes) -> None:
        """Follow the leader while this launcher runs."""
        self._link = Following(host, port, token, self)

    def stop(self) -> None:
        """End: ask the rank to stop, then exit with its exit code."""
        self._state.stop()
        self._changed.set()

    def command(self, command: StartAttempt) -> None:
        """Obey a command, if it is news."""
        if self._state.command(command, time.monotonic()):
            log.info("launcher: attempt %d starts in %.1f s", command.attempt, command.delay_seconds)
            self._command = command
            self._terminated = False
            self._report()
            self._changed.set()

    def newest_command(self) -> StartAttempt | None:
        """The last command with what is left of its back-off, for a launcher that connects later."""
        if self._command is None:
            return None
        left = self._state.remaining_seconds(time.monotonic())
        return StartAttempt(self._command.attempt, self._command.config, self._command.coordinator_port, left)

    @property
    def message(self) -> str:
        """The termination message of the last rank, '' if there was none."""
        return self._message

    @property
    def state(self) -> LauncherState:
        """What it wants and has."""
        return self._state

    async def run(self) -> int:
        """Start the first attempt's rank, and live until the container should end. Returns its exit code."""
        if self._link is not None:
            await self._link.start()
        try:
            while True:
                self._changed.clear()
                action = self._state.next(time.monotonic())
                if isinstance(action, Exit):
                    self._report()
                    return action.code
                await self._act(action)
        finally:
            if self._link is not None:
                await self._link.close()

    async def _act(self, action: Start | Kill | Terminate | Wait) -> None:
        if isinstance(action, Start):
            await self._start(action)
            return
        if isinstance(action, Kill) and self._rank is not None:
            self._rank.kill()
        if isinstance(action, Terminate) and self._rank is not None and not self._terminated:
            self._terminated = True
            self._rank.terminate()
        until = action.until if isinstance(action, Wait) else None
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _start(self, action: Start) -> None:
        self._rank = await self._ranks.start(action.attempt, action.config, action.coordinator_port)
        self._state.started(action.attempt)
        self._waiting = asyncio.create_task(self._await_end(self._rank))
        self._report()

    async def _await_end(self, rank: Rank) -> None:
        exit_code, message = await rank.wait()
        self._message = message
        self._state.ended(exit_code, message, time.time(), time.monotonic())
        self._rank = None
        self._report()
        self._changed.set()

    def _report(self) -> None:
        if self._link is not None:
            self._link.report()
