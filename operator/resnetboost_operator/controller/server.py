"""Serves /metrics, /healthz and /readyz over HTTP; what they say is for others to know."""

from collections.abc import Callable

from aiohttp import web

from resnetboost_operator.controller import metrics
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.errors import UserError


class Server:
    """`stuck` and `unready` tell a reason, or '' if all is well; `role` adds to good news."""

    def __init__(
        self, metrics: Metrics, stuck: Callable[[], str], unready: Callable[[], str], role: Callable[[], str]
    ) -> None:
        self._metrics = metrics
        self._stuck = stuck
        self._unready = unready
        self._role = role
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._show_metrics),
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_readiness),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the addresses that it is bound to, IPv4 first. Raises `UserError` if one is taken."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host or None, port).start()
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with --listen"
            ) from error
        # asyncio binds the families in no order, and port 0 gives each a port of its own.
        bound = sorted(self._runner.addresses, key=lambda found: ":" in found[0])
        return " and ".join(_written(found[0], found[1]) for found in bound)

    async def stop(self) -> None:
        """Listen no more."""
        await self._runner.cleanup()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _show_health(self, request: web.Request) -> web.Response:
        return _answer(self._stuck(), "alive")

    async def _show_readiness(self, request: web.Request) -> web.Response:
        return _answer(self._unready(), f"ready; {self._role()}")


def _written(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _answer(problem: str, otherwise: str) -> web.Response:
    return web.Response(text=f"{problem or otherwise}\n", status=503 if problem else 200)
