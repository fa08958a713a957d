"""An HTTP server on loopback with scripted answers, for tests of clients."""

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.kubeclient.client import Client

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedServer:
    """Gives the answers in order; `requests` are the requests received, as 'METHOD path?query'."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers = iter(answers)
        self.requests: list[str] = []
        self.metrics = Metrics()

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        configuration = Configuration(host=f"http://{host}:{port}")
        self.client = Client(ApiClient(configuration), self.metrics.count_request)
        self.client.may_write = lambda: True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        answer = next(self._answers, refuses(404, "NotFound", "the script is over"))
        return await answer(request)  # type: ignore[arg-type]  # web.Server knows no router


def says(body: Any, code: int = 200, **headers: str) -> Answer:
    """A JSON answer; _ in header names stands for -."""

    async def answer(request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response(body, status=code, headers=named)

    return answer


def refuses(code: int, reason: str = "", message: str = "no", **headers: str) -> Answer:
    """A Kubernetes Status with that code."""
    return says({"kind": "Status", "message": message, "reason": reason, "code": code}, code, **headers)


def hangs_up() -> Answer:
    """A connection that breaks without an answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer


def streams(*events: Any) -> Answer:
    """The events of a watch, one per line; then it ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"".join(json.dumps(event).encode() + b"\n" for event in events))

    return answer
