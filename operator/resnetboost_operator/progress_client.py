"""Fetch a rank's progress over HTTP. The reply is untrusted: bounded in size and time, and checked."""

import errno

import aiohttp
import msgspec

from resnetboost_api import names
from resnetboost_api.status import PolledProgress

LIMIT_BYTES = 64 * 1024
TIMEOUT_SECONDS = 10.0  # a rank that compiles answers late; a second request meanwhile would only queue behind it
CONNECT_SECONDS = 3.0  # of those; one lost packet is sent again within them
# A router or firewall reports that there is no route; a refusal (ECONNREFUSED) comes from the rank's own machine.
_NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH})
_PLAIN = {"Accept-Encoding": "identity"}  # a compressed reply may be of any size


class Unreachable(Exception):
    """No connection can be made, which is about the network and not about the rank."""


async def progress(address: str, port: int = names.PORT_METRICS) -> PolledProgress | None:
    """Return the progress of the rank at `address`, or None if it does not answer or not in the agreed form.

    Raises `Unreachable` if there is no route to it.
    """
    try:
        return decoded(await _get(address, port))
    except aiohttp.ConnectionTimeoutError as error:
        raise Unreachable(f"no connection to {address} within {CONNECT_SECONDS:g} s") from error
    except aiohttp.ClientConnectorError as error:
        if error.errno in _NO_ROUTE:
            raise Unreachable(f"cannot reach {address}: {error.strerror}") from error
        return None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


def decoded(body: bytes) -> PolledProgress | None:
    """Decode a reply; None if it is not in the agreed form."""
    try:
        return msgspec.json.decode(body, type=PolledProgress)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


async def _get(address: str, port: int) -> bytes:
    """Return the body, or nothing if it is too long or the status is not 200."""
    host = f"[{address}]" if ":" in address else address
    async with (
        _session() as session,
        session.get(f"http://{host}:{port}/progress", headers=_PLAIN, allow_redirects=False) as reply,
    ):
        body = bytearray()
        async for part in reply.content.iter_any():
            body += part
            if len(body) > LIMIT_BYTES:
                return b""
        return bytes(body) if reply.status == 200 else b""


def _session() -> aiohttp.ClientSession:
    """Create a session for one request: closing it closes the socket, and the next request is 15 s away."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        trust_env=False,  # a proxy of the cluster knows no pods
    )
