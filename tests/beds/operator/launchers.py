"""All launchers of one gang in one process: the leader listens on index 0's address and answers as a real one does."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from resnetboost_api import names
from resnetboost_api.connection import Broken, Connection
from resnetboost_api.launcher import (
    ALIVE_SECONDS,
    SILENCE_SECONDS,
    Alive,
    GangReport,
    HelloOperator,
    Message,
    RankEnd,
    StartAttempt,
    gang_report,
)

_SECONDS = 10.0


class PlayedLaunchers:
    """Plays `count` launchers in a thread. `ended(index, code)` ends a container whose launcher got no command.

    starts: (index, attempt, monotonic time) of every rank that started.
    obeys: whether ranks start on command. unanswered_seconds: how long a failed rank's launcher waits for one.
    commanded: called with each command before it is obeyed, in the thread.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        count: int,
        attempt: int,
        ended: Callable[[int, int], None] = lambda index, code: None,
    ) -> None:
        self.attempt, self.count = attempt, count
        self.starts = [(index, attempt, time.monotonic()) for index in range(count)]
        self.commands: list[StartAttempt] = []
        self.obeys = True
        self.unanswered_seconds = 10.0
        self.commanded: Callable[[StartAttempt], None] = lambda command: None
        self._address, self._token, self._ended = address, token, ended
        self._ends: dict[int, RankEnd] = {}
        self._running = set(range(count))
        self._connected = count
        self._connections: set[Connection] = set()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="launchers", daemon=True)
        self._thread.start()
        assert ready.wait(_SECONDS), f"nothing listens on {address}"

    def end(self, index: int, code: int, message: str = "") -> None:
        """A rank ends."""
        self._call(self._end, index, code, message)

    def disconnect(self, count: int = 1) -> None:
        """So many launchers lose the leader."""
        self._call(self._lose, count)

    def leave(self) -> None:
        """The leader's container ends; the other launchers live on."""
        self._call(self._stop_listening)

    def close(self) -> None:
        """End all launchers at once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_SECONDS)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        done = threading.Event()

        def run() -> None:
            function(*arguments)
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(_SECONDS)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._stopping = asyncio.Event()
        self._server = await asyncio.start_server(self._talk, self._address, names.PORT_LAUNCHER)
        ready.set()
        await self._stopping.wait()
        self._stop_listening()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_listening(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        with contextlib.suppress(Broken, TimeoutError):
            await connection.greet(self._token, server=True)
            assert isinstance(await connection.receive(), HelloOperator)
            await connection.send(self.report())
            self._connections.add(connection)
            alive = asyncio.create_task(self._keep_alive(connection))
            try:
                while True:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        message = await connection.receive()
                    if isinstance(message, StartAttempt):
                        self._command(message)
            finally:
                alive.cancel()
                self._connections.discard(connection)
        connection.close()

    async def _keep_alive(self, connection: Connection) -> None:
        with contextlib.suppress(Broken):
            while True:
                await asyncio.sleep(ALIVE_SECONDS)
                await connection.send(Alive())

    def report(self) -> GangReport:
        """What the leader reports now."""
        return gang_report(self.attempt, len(self._running), self._connected, self._ends.values())

    def _tell(self) -> None:
        for connection in self._connections:
            self._loop.create_task(self._send(connection, self.report()))

    async def _send(self, connection: Connection, message: Message) -> None:
        with contextlib.suppress(Broken):
            await connection.send(message)

    def _command(self, command: StartAttempt) -> None:
        self.commands.append(command)
        self.commanded(command)
        if command.attempt <= self.attempt or not self.obeys:
            return
        self.attempt = command.attempt
        self._ends.clear()
        self._running.clear()
        self._tell()
        self._loop.call_later(command.delay_seconds, self._start, command.attempt, range(self.count))

    def _start(self, attempt: int, indexes: Sequence[int]) -> None:
        if attempt != self.attempt:
            return
        now = time.monotonic()
        self.starts += [(index, attempt, now) for index in indexes]
        self._running |= set(indexes)
        self._tell()

    def _end(self, index: int, code: int, message: str) -> None:
        self._running.discard(index)
        self._ends[index] = RankEnd(index, self.attempt, code, message, time.time())
        self._tell()
        self._loop.call_later(self.unanswered_seconds, self._give_up, index, self.attempt, code)

    def _give_up(self, index: int, attempt: int, code: int) -> None:
        if self.attempt == attempt and index in self._ends:
            self._lose(1)
            self._ended(index, code)

    def _lose(self, count: int) -> None:
        self._connected -= count
        self._tell()
