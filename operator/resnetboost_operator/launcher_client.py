"""A link to the launcher of a gang's leader. What it reports is untrusted: bounded in size and number, and checked."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable

from resnetboost_api import names
from resnetboost_api.connection import Broken, Connection, connect
from resnetboost_api.launcher import ALIVE_SECONDS, SILENCE_SECONDS, Alive, GangReport, HelloOperator, StartAttempt

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
# A launcher listens a moment after its container began; one that does not by then is an older image without launchers,
# or a network policy keeps us from it.
FIRST_RETRY_SECONDS, MOST_RETRY_SECONDS = 0.25, 10.0
# A gang of a thousand reports each rank that starts and each that ends; no honest leader says more.
MOST_MESSAGES, WINDOW_SECONDS = 5000, 10.0


def token(key: bytes, job_uid: str) -> bytes:
    """The token of a job's launchers, as text: who knows it commands them, and it gives away nothing of the key."""
    return hmac.new(key, f"launcher of {job_uid}".encode(), hashlib.sha256).hexdigest().encode()


def key_id(key: bytes) -> str:
    """A name for the key, which gives nothing of it away either."""
    return hmac.new(key, b"name of this key", hashlib.sha256).hexdigest()[:8]


class Link:
    """A connection to the leader at `address`, made again whenever it breaks. `changed` is called for each new report.

    To be made on a running event loop.
    """

    def __init__(
        self, address: str, secret: bytes, changed: Callable[[], None], port: int = names.PORT_LAUNCHER
    ) -> None:
        self._address, self._port, self._secret = address, port, secret
        self._changed = changed
        self._report: GangReport | None = None
        self._command: StartAttempt | None = None
        self._commanded = -1
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._keep())

    @property
    def report(self) -> GangReport | None:
        """What the leader reported last, None while there is no connection to it."""
        return self._report

    def send(self, command: StartAttempt) -> None:
        """Send a command, once over each connection. Without a connection it is dropped: the next plan has it again."""
        if self._report is not None and command.attempt > self._commanded:
            self._command, self._commanded = command, command.attempt
            self._wake.set()

    def close(self) -> None:
        """Close the connection."""
        self._task.cancel()

    async def _keep(self) -> None:
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                await self._talk()
            except (Broken, TimeoutError) as error:
                logger.debug("launcher of %s: %s", self._address, error)
            if self._report is not None:
                wait, self._report = FIRST_RETRY_SECONDS, None
                self._changed()
            self._command, self._commanded = None, -1
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_RETRY_SECONDS)

    async def _talk(self) -> None:
        """One connection, to its end. Raises Broken or TimeoutError."""
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await connect(self._address, self._port, self._secret, HelloOperator())
        speaking = asyncio.create_task(self._speak(connection))
        try:
            await self._listen(connection)
        finally:
            speaking.cancel()
            connection.close()

    async def _listen(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        began, count = loop.time(), 0
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await connection.receive()
            if loop.time() - began > WINDOW_SECONDS:
                began, count = loop.time(), 0
            count += 1
            if count > MOST_MESSAGES:
                raise Broken(f"more than {MOST_MESSAGES} messages in {WINDOW_SECONDS:g} s")
            if isinstance(message, GangReport) and message != self._report:
                self._report = message
                self._changed()

    async def _speak(self, connection: Connection) -> None:
        """Send commands at once, and a sign of life where there is none. Ends with the connection."""
        try:
            while True:
                command, self._command = self._command, None
                self._wake.clear()
                async with asyncio.timeout(SILENCE_SECONDS):
                    await connection.send(command or Alive())
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        except (Broken, TimeoutError):
            connection.close()  # so that nobody listens to it in vain
