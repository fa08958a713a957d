"""Plain HTTP requests to the API server, where kubectl is too slow."""

import json
import ssl
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3

from beds.cluster.certificates import Pair
from beds.cluster.errors import ClusterError

_TIMEOUT_SECONDS = 30
_WATCH_SECONDS = 600
# As client-go does: a server that is busy, or whose definition of a kind has just changed, has done nothing yet.
_BUSY_TRIES, _BUSY_SECONDS = 10, 1.0
# Kept open, for threads that ask at the same time: a TLS handshake costs more than a request.
_CONNECTIONS = 32


class Client:
    """Sends requests as the owner of a certificate, ignoring proxies of the environment. Threads may share it."""

    def __init__(self, url: str, authority: Path, user: Pair) -> None:
        self._url = url
        tls = ssl.create_default_context(cafile=str(authority))
        tls.load_cert_chain(user.certificate, user.key)
        self._connections = urllib3.PoolManager(ssl_context=tls, maxsize=_CONNECTIONS, retries=False)

    def get(self, path: str) -> str:
        """The response as text; raises `OSError` if there is none or it is an error."""
        answer = self._ask("GET", path)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise OSError(f"GET {path}: HTTP {answer.status}: {_complaint(answer.data)}")
        return answer.data.decode()

    def answers(self, path: str) -> bool:
        """Whether the server answers without an error."""
        try:
            self.get(path)
        except OSError:
            return False
        return True

    def lines(self, path: str) -> Iterator[str]:
        """Lines of a streamed response (a watch) as they arrive. Raises `OSError` when the stream breaks."""
        answer = self._ask("GET", path, timeout=_WATCH_SECONDS, preload_content=False)
        try:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise OSError(f"GET {path}: HTTP {answer.status}: {_complaint(answer.data)}")
            for line in answer:
                yield line.decode()
        except urllib3.exceptions.HTTPError as error:  # broken within a chunk
            raise ConnectionError(f"{path}: the answer broke off: {error}") from error
        finally:
            answer.close()

    def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> dict[str, Any]:
        """Send an object, or bytes as they are; returns the server's. Raises `ClusterError` with its message."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._ask(method, path, body=content, headers={"Content-Type": content_type})
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise ClusterError(f"{method} {path}: {_complaint(answer.data)}")
        returned: dict[str, Any] = json.loads(answer.data)
        return returned

    def _ask(self, method: str, path: str, timeout: float = _TIMEOUT_SECONDS, **more: Any) -> urllib3.BaseHTTPResponse:
        """Send a request, again as long as the server answers 429. Raises `OSError` if there is no response."""
        for _ in range(_BUSY_TRIES - 1):
            answer = self._ask_once(method, path, timeout, **more)
            if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
                return answer
            answer.drain_conn()
            time.sleep(_BUSY_SECONDS)
        return self._ask_once(method, path, timeout, **more)

    def _ask_once(self, method: str, path: str, timeout: float, **more: Any) -> urllib3.BaseHTTPResponse:
        try:
            return self._connections.request(method, self._url + path, timeout=timeout, **more)
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"{method} {path}: {error}") from error


def _complaint(answer: bytes) -> str:
    """Message of a Status, or the plain text of an overloaded server."""
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, TypeError, KeyError):
        return answer.decode(errors="replace").strip()
