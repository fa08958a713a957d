"""The leader's server: connections of the gang's other launchers and of operators."""

import asyncio
import contextlib
import logging
from typing import Protocol

from resnetboost_api.connection import Broken, Connection
from resnetboost_api.launcher import (
    ALIVE_SECONDS,
    SILENCE_SECONDS,
    Alive,
    HelloLauncher,
    HelloOperator,
    Message,
    RankReport,
    StartAttempt,
)
from resnetboost_trainer.launcher.gang import GangView
from resnetboost_trainer.launcher.state import LauncherState

log = logging.getLogger(__name__)

# A thousand ranks start within moments of each other: an operator gets their reports together.
REPORT_SECONDS = 0.05
# A greeting is short; whoever has not proved to know the token gets no room for more.
HELLO_BYTES = 1024
# Connections that have not said who they are; more are refused. A gang of a thousand connects within a second.
STRANGERS = 64


class Commanded(Protocol):
    """The leader's own launcher."""

    index: int

    def command(self, command: StartAttempt) -> None:
        """Obey a command, if it is news."""
        ...

    def newest_command(self) -> StartAttempt | None:
        """The last command."""
        ...

    def stop(self) -> None:
        """End."""
        ...

    @property
    def state(self) -> LauncherState:
        """What it wants and has."""
        ...


class Leading:
    """Serves until closed. Commands of operators go to the leader's own launcher and to all others."""

    def __init__(self, address: str, port: int, token: bytes, size: int, own: Commanded) -> None:
        self._address, self._port, self._token, self._size, self._own = address, port, token, size, own
        self._gang = GangView(size)
        self._launchers: dict[int, Connection] = {}
        self._news = asyncio.Condition()
        self._version = 0
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError if the address is taken."""
        backlog = max(128, self._size)
        self._server = await asyncio.start_server(self._serve, self._address or None, self._port, backlog=backlog)
        self.report()

    async def close(self) -> None:
        """Close all connections, so that the others notice at once."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def report(self) -> None:
        """Take the report of the leader's own launcher."""
        self._heard(self._own.index, self._own.state.report())

    def _heard(self, index: int, report: RankReport) -> None:
        self._gang.heard(index, report)
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._spawn(self._notify())

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= max(STRANGERS, self._size):
            writer.close()
            return
        self._strangers += 1
        self._spawn(self._talk(Connection(reader, writer)))

    async def _talk(self, connection: Connection) -> None:
        try:
            hello = await self._greeted(connection)
            if isinstance(hello, HelloOperator):
                await self._serve_operator(connection)
            elif isinstance(hello, HelloLauncher) and 0 <= hello.index < self._size and hello.index != self._own.index:
                await self._serve_launcher(connection, hello.index)
        except (Broken, TimeoutError, ValueError) as error:
            log.debug("launcher: a connection ended: %s", error)
        finally:
            connection.close()

    async def _greeted(self, connection: Connection) -> Message:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await connection.greet(self._token, server=True)
                return await connection.receive(HELLO_BYTES)
        finally:
            self._strangers -= 1

    async def _serve_operator(self, connection: Connection) -> None:
        reporting = self._spawn(self._keep_informed(connection))
        try:
            while True:
                message = await received(connection)
                if isinstance(message, StartAttempt):
                    self._own.command(message)
                    await self._pass_on(message)
        finally:
            reporting.cancel()

    async def _keep_informed(self, connection: Connection) -> None:
        """Send a report after every change, and signs of life between them."""
        sent = -1
        with contextlib.suppress(Broken):
            while True:
                if await self._changes_from(sent):
                    sent = self._version
                    await connection.send(self._gang.report(self._own.state.attempt))
                    await asyncio.sleep(REPORT_SECONDS)
                else:
                    await connection.send(Alive())

    async def _changes_from(self, version: int) -> bool:
        """Whether the version is another one within ALIVE_SECONDS."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS), self._news:
                await self._news.wait_for(lambda: self._version != version)
        except TimeoutError:
            return False
        return True

    async def _serve_launcher(self, connection: Connection, index: int) -> None:
        if (before := self._launchers.get(index)) is not None:
            before.close()  # its launcher has connected again
        self._launchers[index] = connection
        living = self._spawn(keep_alive(connection))
        try:
            if (command := self._own.newest_command()) is not None:
                await connection.send(command)
            while True:
                message = await received(connection)
                if isinstance(message, RankReport) and self._launchers.get(index) is connection:
                    self._heard(index, message)
        finally:
            living.cancel()
            if self._launchers.get(index) is connection:
                del self._launchers[index]
                self._gang.lost(index)
                self._changed()

    async def _pass_on(self, message: Message) -> None:
        for connection in tuple(self._launchers.values()):
            self._spawn(_send(connection, message))


async def _send(connection: Connection, message: Message) -> None:
    with contextlib.suppress(Broken):
        await connection.send(message)


async def received(connection: Connection) -> Message:
    """The next message. Raises Broken, and TimeoutError after SILENCE_SECONDS of silence."""
    async with asyncio.timeout(SILENCE_SECONDS):
        return await connection.receive()


async def keep_alive(connection: Connection) -> None:
    """Send signs of life until the connection ends."""
    with contextlib.suppress(Broken):
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await connection.send(Alive())
