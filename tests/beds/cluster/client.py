"""Plain HTTP requests to the API server, where kubectl is too slow."""

import http
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from beds.cluster.certificates import Pair
from beds.cluster.errors import ClusterError

_TIMEOUT_SECONDS = 30
_WATCH_SECONDS = 600
# As client-go does: a server that is busy, or whose definition of a kind has just changed, has done nothing yet.
_BUSY_TRIES, _BUSY_SECONDS = 10, 1.0


class Client:
    """Sends requests as the owner of a certificate, one after another, ignoring proxies of the environment."""

    def __init__(self, url: str, authority: Path, user: Pair) -> None:
        self._url = url
        tls = ssl.create_default_context(cafile=str(authority))
        tls.load_cert_chain(user.certificate, user.key)
        directly = urllib.request.ProxyHandler({})
        self._opener = urllib.request.build_opener(directly, urllib.request.HTTPSHandler(context=tls))

    def _open(self, request: urllib.request.Request | str, timeout: float) -> http.client.HTTPResponse:
        """Send a request, again as long as the server answers 429."""
        for _ in range(_BUSY_TRIES - 1):
            try:
                return cast(http.client.HTTPResponse, self._opener.open(request, timeout=timeout))
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                error.close()
                time.sleep(_BUSY_SECONDS)
        return cast(http.client.HTTPResponse, self._opener.open(request, timeout=timeout))

    def get(self, path: str) -> str:
        """The response as text; raises `OSError` if there is none or it is an error."""
        with self._open(self._url + path, timeout=_TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())

    def answers(self, path: str) -> bool:
        """Whether the server answers without an error."""
        try:
            self.get(path)
        except OSError:
            return False
        return True

    def lines(self, path: str) -> Iterator[str]:
        """Lines of a streamed response (a watch) as they arrive. Raises `OSError` when the stream breaks."""
        with self._open(self._url + path, timeout=_WATCH_SECONDS) as answer:
            try:
                for line in answer:
                    yield line.decode()
            except http.client.HTTPException as error:  # broken within a chunk
                raise ConnectionError(f"{path}: the answer broke off: {error}") from error

    def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> dict[str, Any]:
        """Send an object; returns the server's. Raises `ClusterError` with the server's message."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, {"Content-Type": content_type}, method=method)
        try:
            with self._open(request, timeout=_TIMEOUT_SECONDS) as answer:
                returned: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ClusterError(f"{method} {path}: {_complaint(error.read())}") from None
        return returned


def _complaint(answer: bytes) -> str:
    """Message of a Status, or the plain text of an overloaded server."""
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, TypeError, KeyError):
        return answer.decode(errors="replace").strip()
