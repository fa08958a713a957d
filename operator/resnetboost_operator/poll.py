"""Asks a rank for its progress over HTTP; the answer is untrusted: bounded in size and time, and checked."""

import asyncio

import msgspec

from resnetboost_operator import names
from resnetboost_operator.status import Progress

LIMIT_BYTES = 64 * 1024
TIMEOUT_SECONDS = 10.0  # a rank that compiles answers late; asking again meanwhile would only pile up questions
_REQUEST = "GET /progress HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"


async def progress(address: str, port: int = names.PORT_METRICS) -> Progress | None:
    """What the rank at `address` tells; None if it does not answer, or not in the agreed form."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return _decode(await _get(address, port))
    except (OSError, TimeoutError, asyncio.LimitOverrunError):
        return None
    except (msgspec.MsgspecError, ValueError, RecursionError):  # what it says is not in the agreed form
        return None


async def _get(address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(_REQUEST.format(address=address).encode())
        await writer.drain()
        answer = bytearray()
        while len(answer) <= LIMIT_BYTES and (part := await reader.read(LIMIT_BYTES)):
            answer += part
        return bytes(answer)
    finally:
        writer.close()


def _decode(answer: bytes) -> Progress | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)
    if len(answer) > LIMIT_BYTES or len(status) < 2 or status[1] != b"200":
        return None
    return msgspec.json.decode(body, type=Progress)
