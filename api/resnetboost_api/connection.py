"""An authenticated connection between an operator and a launcher, or between two launchers of a gang.

Both ends know the gang's token. It never travels: each end sends a nonce, and every frame has an HMAC by a key of that
connection and direction, over its number. A frame that is changed, repeated or of another connection ends the
connection.
"""

import asyncio
import hashlib
import hmac
import secrets
import struct
from typing import cast

import msgspec

from resnetboost_api.launcher import AnyMessage, HelloLauncher, HelloOperator, Message

LIMIT_BYTES = 1 << 20
NONCE_BYTES = 16

_DIGEST = hashlib.sha256
_MAC_BYTES = 32
_LENGTH = struct.Struct(">I")


class Broken(Exception):
    """The connection cannot be used any more: the other end left, or is not who it should be."""


class Connection:
    """An authenticated connection. One task may receive while others send."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sent = self._received = 0
        self._send_key = self._receive_key = b""

    async def greet(self, token: bytes, *, server: bool) -> None:
        """Exchange nonces. Raises Broken. Whether the other end knows the token shows in its first message."""
        ours = secrets.token_bytes(NONCE_BYTES)
        self._writer.write(ours)
        try:
            await self._writer.drain()
            theirs = await self._reader.readexactly(NONCE_BYTES)
        except (OSError, EOFError) as error:
            raise Broken(str(error)) from error
        nonces = ours + theirs if server else theirs + ours
        keys = [hmac.digest(token, nonces + name, _DIGEST) for name in (b"server", b"client")]
        self._send_key, self._receive_key = keys if server else reversed(keys)

    async def send(self, message: Message) -> None:
        """Send a message. Raises Broken."""
        frame = self.sealed(message)
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except (OSError, EOFError) as error:
            raise Broken(str(error)) from error

    def sealed(self, message: Message) -> bytes:
        """The next frame: length, HMAC, JSON."""
        body = msgspec.json.encode(message)
        frame = _LENGTH.pack(len(body)) + _mac(self._send_key, self._sent, body) + body
        self._sent += 1
        return frame

    async def receive(self, limit_bytes: int = LIMIT_BYTES) -> AnyMessage:
        """The next message. Raises Broken for the end of the connection, a wrong HMAC, and what is no message."""
        try:
            head = await self._reader.readexactly(_LENGTH.size + _MAC_BYTES)
            (length,) = _LENGTH.unpack_from(head)
            if length > limit_bytes:
                raise Broken(f"a message of {length} bytes; the limit is {limit_bytes}")
            body = await self._reader.readexactly(length)
        except (OSError, EOFError) as error:
            raise Broken(str(error)) from error
        if not hmac.compare_digest(head[_LENGTH.size :], _mac(self._receive_key, self._received, body)):
            raise Broken("a message was not signed with the gang's token")
        self._received += 1
        try:
            return cast(AnyMessage, msgspec.json.decode(body, type=AnyMessage))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Broken(f"not a message: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def _mac(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + body, _DIGEST)


async def connect(host: str, port: int, token: bytes, hello: HelloOperator | HelloLauncher) -> Connection:
    """Connect to a leader and say who we are. Raises Broken; use asyncio.timeout for a deadline."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise Broken(str(error)) from error
    connection = Connection(reader, writer)
    try:
        await connection.greet(token, server=False)
        await connection.send(hello)
    except BaseException:
        connection.close()
        raise
    return connection
