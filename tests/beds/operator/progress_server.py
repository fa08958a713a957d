"""Serves the trainer's /progress for rank 0 of a fake pod, with answers the test sets."""

import http.server
import threading
import time
from collections.abc import Callable

from resnetboost_api import names


class ProgressPort:
    """Answers GET on a pod's address with the result of `tell`; `asked` are the requests' times (monotonic)."""

    def __init__(self, address: str, tell: Callable[[], bytes]) -> None:
        self.asked: list[float] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(time.monotonic())
                body = tell()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server((address, names.PORT_METRICS), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore errors of connections that the operator closed in the middle of an answer."""
