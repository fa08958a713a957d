"""The connection of a launcher to its leader, made again whenever it is lost."""

import asyncio
import contextlib
import logging

from resnetboost_api.connection import Broken, Connection, connect
from resnetboost_api.launcher import SILENCE_SECONDS, HelloLauncher, StartAttempt
from resnetboost_trainer.launcher.leading import Commanded, keep_alive, received

log = logging.getLogger(__name__)

# The leader's name resolves once its pod has an address.
FIRST_RETRY_SECONDS, MOST_RETRY_SECONDS = 0.1, 2.0


class Following:
    """Follows until closed."""

    def __init__(self, host: str, port: int, token: bytes, own: Commanded) -> None:
        self._host, self._port, self._token, self._own = host, port, token, own
        self._news = asyncio.Event()
        self._reported = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Leave, after the newest report is sent if there is a connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._reported.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def report(self) -> None:
        """Send the newest report."""
        self._reported.clear()
        self._news.set()

    async def _follow(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    connection = await connect(self._host, self._port, self._token, HelloLauncher(self._own.index))
            except (Broken, TimeoutError) as error:
                log.debug("launcher: cannot reach the leader: %s", error)
                self._reported.set()  # nobody to report to
            else:
                delay = FIRST_RETRY_SECONDS
                await self._talk(connection)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MOST_RETRY_SECONDS)

    async def _talk(self, connection: Connection) -> None:
        tasks = [asyncio.create_task(keep_alive(connection)), asyncio.create_task(self._keep_informed(connection))]
        try:
            while True:
                message = await received(connection)
                if isinstance(message, StartAttempt):
                    self._own.command(message)
        except (Broken, TimeoutError) as error:
            log.debug("launcher: lost the leader: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            connection.close()

    async def _keep_informed(self, connection: Connection) -> None:
        with contextlib.suppress(Broken):
            while True:
                self._news.clear()
                await connection.send(self._own.state.report())
                if not self._news.is_set():
                    self._reported.set()
                await self._news.wait()
