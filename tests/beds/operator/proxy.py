"""A proxy between one operator and the API server: counts writes, and injects network and server failures.

Plain HTTP on loopback towards the operator, whose token it passes on. Watches stream through.
"""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import aiohttp
from aiohttp import web

When = Literal["before", "after"]

# Hop-by-hop headers.
_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"})
_READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Call:
    """A request as the proxy saw it; `path` is without its query."""

    method: str
    path: str
    is_watch: bool

    @property
    def is_write(self) -> bool:
        """Whether it is a write other than of leases and events, which are written at any time."""
        return self.method not in _READING and self.collection not in ("leases", "events")

    @property
    def collection(self) -> str:
        """The resource's plural: /api/v1/namespaces/x/pods/y is about pods."""
        parts = self.path.split("/")
        after_namespace = parts.index("namespaces") + 2 if "namespaces" in parts else 0
        return parts[after_namespace] if after_namespace and len(parts) > after_namespace else parts[-1]


@dataclass
class Trouble:
    """A failure of the next `times` calls that `concerns` accepts.

    `code` is answered without passing the call on (0: none); 410 to a watch comes as an event within it, as from a real
    server. `lost`: the call is passed on, but the answer never arrives.
    """

    times: int
    concerns: Callable[[Call], bool]
    code: int = 0
    retry_after: str = ""
    lost: bool = False


@dataclass
class Crash:
    """The operator is killed around its n-th write (counted from 1).

    when: before the server sees the write, or just after it was done.
    write: 0 means after each write that changed anything. Writes that conflicted or found nothing to delete do not
    count, because the next life begins with the same ones.
    """

    write: int
    when: When
    act: Callable[[], None]


class Proxy:
    """The proxy as a context manager; `url` is the API server's address for the operator.

    `muted`: watches that stay open and deliver no events any more, as on a dead connection.
    """

    def __init__(self, upstream: str, authority: Path) -> None:
        self._upstream = upstream
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._loop = asyncio.new_event_loop()
        self._watches: set[asyncio.Transport] = set()
        self._closed_to_writes = False
        self.crash: Crash | None = None
        self.troubles: list[Trouble] = []
        self.delay_seconds = 0.0
        self.muted: Callable[[Call], bool] = lambda call: False
        self.calls: list[Call] = []

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="proxy", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    @property
    def writes(self) -> list[Call]:
        """Every write the operator has tried so far, except leases and events."""
        return [call for call in self.calls if call.is_write]

    def reopen(self) -> None:
        """Let writes through again after a crash: they come from the restarted operator."""
        self._closed_to_writes = False

    def cut_watches(self) -> None:
        """Break every watch without an error event."""
        self._loop.call_soon_threadsafe(self._abort_watches)

    def _abort_watches(self) -> None:
        for transport in self._watches:
            transport.abort()

    def _run(self, started: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        self._stop = asyncio.Event()
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._session:
            # aiohttp cancels the handler of a client that is gone, and with it the watch behind it.
            runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = Call(request.method, request.path, is_watch="watch" in request.query)
        self.calls.append(call)
        trouble = self._next_trouble(call)
        crash = self._due_crash(call)
        if self.delay_seconds and not call.is_watch and call.collection != "leases":
            await asyncio.sleep(self.delay_seconds)
        if crash is not None and crash.when == "before":
            return self._end_operator(crash, request)
        if call.is_write and self._closed_to_writes:
            return _hang_up(request)
        if trouble is not None and trouble.code:
            return _refusal(trouble, call)
        try:
            return await self._forward(request, call, crash, trouble)
        except (aiohttp.ClientError, OSError):  # the server or the operator is gone
            return _hang_up(request)

    def _next_trouble(self, call: Call) -> Trouble | None:
        for trouble in self.troubles:
            if trouble.times > 0 and trouble.concerns(call):
                trouble.times -= 1
                return trouble
        return None

    def _due_crash(self, call: Call) -> Crash | None:
        crash = self.crash
        due = crash is not None and call.is_write and crash.write in (0, len(self.writes))
        return crash if due and not self._closed_to_writes else None

    def _end_operator(self, crash: Crash, request: web.BaseRequest) -> web.Response:
        self._closed_to_writes = True
        crash.act()
        return _hang_up(request)

    async def _forward(
        self, request: web.BaseRequest, call: Call, crash: Crash | None, trouble: Trouble | None
    ) -> web.StreamResponse:
        async with self._ask(request) as answer:
            if crash is not None and (crash.write or await _has_changed_something(request, answer)):
                await answer.read()
                return self._end_operator(crash, request)
            if trouble is not None and trouble.lost:
                await answer.read()
                return _hang_up(request)
            with self._noted(request, call):
                return await _pass_on(request, answer, lambda: call.is_watch and self.muted(call))

    @contextlib.asynccontextmanager
    async def _ask(self, request: web.BaseRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        url = self._upstream + request.raw_path
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP}
        body = await request.read() or None
        async with self._session.request(
            request.method, url, headers=headers, data=body, skip_auto_headers=["Content-Type", "User-Agent"]
        ) as answer:
            yield answer

    @contextlib.contextmanager
    def _noted(self, request: web.BaseRequest, call: Call) -> Iterator[None]:
        transport = request.transport
        if transport is None or not call.is_watch:
            yield
            return
        self._watches.add(transport)
        try:
            yield
        finally:
            self._watches.discard(transport)


async def _has_changed_something(request: web.BaseRequest, answer: aiohttp.ClientResponse) -> bool:
    answered = json.loads(await answer.read())
    return answer.status < 300 and not (request.method == "DELETE" and answered.get("items") == [])


async def _pass_on(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, muted: Callable[[], bool]
) -> web.StreamResponse:
    """Stream the response in chunks."""
    headers = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP_BY_HOP}
    passed = web.StreamResponse(status=answer.status, headers=headers)
    await passed.prepare(request)
    if answer.content.at_eof():  # already read
        await passed.write(await answer.read())
    async for piece in answer.content.iter_any():
        if not muted():
            await passed.write(piece)
    await passed.write_eof()
    return passed


def _hang_up(request: web.BaseRequest) -> web.Response:
    """Reset the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _refusal(trouble: Trouble, call: Call) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": trouble.code, "message": "injected"}
    if call.is_watch and trouble.code == 410:
        return web.json_response({"type": "ERROR", "object": status})
    headers = {"Retry-After": trouble.retry_after} if trouble.retry_after else {}
    return web.json_response(status, status=trouble.code, headers=headers)
