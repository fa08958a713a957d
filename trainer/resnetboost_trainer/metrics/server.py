"""HTTP server of a rank: /metrics for Prometheus, /progress for the operator or runner, /training for kubelet."""

import http.server
import logging
import sys
import threading
from collections.abc import Callable

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from resnetboost_trainer.failures import ConfigError
from resnetboost_trainer.metrics.progress import ProgressState

log = logging.getLogger(__name__)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an error, unless the client closed the connection."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("cannot answer %s: %r", client_address, error)


class Server:
    """HTTP server in its own thread. It serves from its creation on, while the rank is still starting."""

    def __init__(self, address: str, port: int, progress: ProgressState) -> None:
        """Bind. Raises ConfigError naming the address if it is taken or not ours."""
        self._state = progress
        self._registry = CollectorRegistry()
        routes = {
            "/progress": self._progress,
            "/metrics": self._metrics,
            "/training": self._training,
            "/healthz": lambda: (200, "text/plain", b"ok\n"),
        }
        try:
            self._server = _Server((address, port), _handler(routes))
        except OSError as error:
            raise ConfigError(f"cannot serve metrics on {address or '*'}:{port}: {error.strerror}") from error
        threading.Thread(target=self._server.serve_forever, daemon=True, name="server").start()

    def expose(self, registry: CollectorRegistry) -> None:
        """Serve these metrics from now on."""
        self._registry = registry

    def _progress(self) -> "Answer":
        return 200, "application/json", msgspec.json.encode(self._state.read())

    def _metrics(self) -> "Answer":
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def _training(self) -> "Answer":
        return (200, "text/plain", b"ok\n") if self._state.moves() else (503, "text/plain", b"no step a moment ago\n")


# HTTP status, content type and body.
Answer = tuple[int, str, bytes]
Route = Callable[[], Answer]
_UNKNOWN: Answer = (404, "text/plain", b"not found; try /metrics or /progress\n")


def _handler(routes: dict[str, Route]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # a client that sends nothing must not keep a thread for ever

        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            code, kind, body = route() if route else _UNKNOWN
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: scrapes come every few seconds."""

    return Handler
