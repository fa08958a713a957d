"""Asks a rank for its progress over HTTP; the answer is untrusted: bounded in size and time, and checked."""

import asyncio
import errno

import msgspec

from resnetboost_operator import names
from resnetboost_operator.status import Progress

LIMIT_BYTES = 64 * 1024
TIMEOUT_SECONDS = 10.0  # a rank that compiles answers late; asking again meanwhile would only pile up questions
CONNECT_SECONDS = 3.0  # of those; one lost packet is sent again within them
# A router or firewall says that there is no way; a refusal (ECONNREFUSED) comes from the rank's own machine.
_NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH})
_REQUEST = "GET /progress HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"


class Unreachable(Exception):
    """No connection comes about: this says something about the network and nothing about the rank."""


async def progress(address: str, port: int = names.PORT_METRICS) -> Progress | None:
    """What the rank at `address` tells; None if it does not answer, or not in the agreed form.

    Raises `Unreachable` if the network has no way to it.
    """
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return _decode(await _get(address, port))
    except (OSError, TimeoutError, asyncio.LimitOverrunError):
        return None
    except (msgspec.MsgspecError, ValueError, RecursionError):  # what it says is not in the agreed form
        return None


async def _get(address: str, port: int) -> bytes:
    reader, writer = await _connect(address, port)
    try:
        writer.write(_REQUEST.format(address=address).encode())
        await writer.drain()
        answer = bytearray()
        while len(answer) <= LIMIT_BYTES and (part := await reader.read(LIMIT_BYTES)):
            answer += part
        return bytes(answer)
    finally:
        writer.close()


async def _connect(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.open_connection(address, port)
    except TimeoutError as error:
        raise Unreachable(f"no connection to {address} within {CONNECT_SECONDS:g} s") from error
    except OSError as error:
        if error.errno in _NO_WAY:
            raise Unreachable(f"no way to {address}: {error.strerror}") from error
        raise


def _decode(answer: bytes) -> Progress | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)
    if len(answer) > LIMIT_BYTES or len(status) < 2 or status[1] != b"200":
        return None
    return msgspec.json.decode(body, type=Progress)
