"""A small client of MLflow's REST API, on the standard library.

MLflow's own client brings 37 packages, takes two seconds of a core to import and repeats a request that creates a run,
which then may exist twice.
"""

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resnetboost_trainer.tracking.tracker import Rejected

REQUEST_SECONDS = 10.0
MOST_BYTES = 4 << 20
_API = "/api/2.0/mlflow"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
_MOST_CHARACTERS = 200
# Answers that are the same next time, with the same request: if they are MLflow's own, and not those of a proxy.
_TOO_LARGE = 413
_FINAL = (400, 404, 405, 409, _TOO_LARGE, 422)


class MLflowError(Exception):
    """A request that failed and may succeed later."""


class NotFound(Rejected):
    """What was asked for does not exist."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another server."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


class Client:
    """Requests to one server, with the credentials of the usual variables, and without any retries of its own."""

    def __init__(self, address: str, variables: Mapping[str, str]) -> None:
        self._address = address.rstrip("/")
        self._authorization = _authorization(variables)
        https = urllib.request.HTTPSHandler(context=_tls(variables))
        self._opener = urllib.request.build_opener(_NoRedirects(), https)

    def post(self, path: str, **body: Any) -> Any:
        """Call a method of the API."""
        data = json.dumps(body, allow_nan=False).encode()
        return self._request("POST", f"{_API}/{path}", data, "application/json")

    def get(self, path: str, **query: str) -> Any:
        """Read from the API. Raises NotFound."""
        return self._request("GET", f"{_API}/{path}?{urllib.parse.urlencode(query)}")

    def upload(self, artifacts: str, name: str, path: Path) -> None:
        """Put a file among the artifacts of a run, whose address is `artifacts`. Raises Rejected, OSError."""
        found = urllib.parse.urlsplit(artifacts)
        if found.scheme != "mlflow-artifacts":
            reason = f"the server keeps artifacts in {found.scheme or 'a folder'} itself"
            raise Rejected(f"{name} is not sent: {reason}; start it with --serve-artifacts and --artifacts-destination")
        place = urllib.parse.quote(f"{found.path.strip('/')}/{name}")
        self._request("PUT", _ARTIFACTS + place, path.read_bytes(), "application/octet-stream")

    def _request(self, method: str, path: str, data: bytes | None = None, kind: str = "") -> Any:
        """Raises MLflowError, or Rejected where another try would end in the same way."""
        headers = {"Content-Type": kind} if data is not None else {}
        if self._authorization:
            headers["Authorization"] = self._authorization
        request = urllib.request.Request(self._address + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as response:
                body = response.read(MOST_BYTES)
        except urllib.error.HTTPError as error:
            raise _refusal(error, path) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise MLflowError(f"{self._address} is out of reach: {reason}") from None
        try:
            return json.loads(body or b"{}")
        except ValueError:
            raise MLflowError(f"{self._address}{path} answers with something else than JSON") from None


def _refusal(error: urllib.error.HTTPError, path: str) -> Exception:
    try:
        body = dict(json.loads(error.read(MOST_BYTES)))
    except (OSError, TypeError, ValueError, http.client.HTTPException):
        body = {}  # it comes from a proxy, or a server that starts
    said = str(body.get("message", ""))[:_MOST_CHARACTERS]
    text = f"{path} answers {error.code} {error.reason}{f': {said}' if said else ''}"
    if error.code in (401, 403):
        remedy = "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        return MLflowError(f"{text}; correct {remedy} in the secret of tracking.secretName or in the environment")
    if error.code in range(300, 400):
        return MLflowError(f"{text}; give the address it redirects to as tracking.mlflow.trackingUri")
    if error.code not in _FINAL or ("error_code" not in body and error.code != _TOO_LARGE):
        return MLflowError(text)
    return NotFound(text) if error.code == 404 else Rejected(text)


def _authorization(variables: Mapping[str, str]) -> str:
    """The header by which MLflow's own client is known to its server; empty without credentials."""
    if token := variables.get("MLFLOW_TRACKING_TOKEN", "").strip():
        return f"Bearer {token}"
    user, password = variables.get("MLFLOW_TRACKING_USERNAME", ""), variables.get("MLFLOW_TRACKING_PASSWORD", "")
    return f"Basic {b64encode(f'{user}:{password}'.strip().encode()).decode()}" if user else ""


def _tls(variables: Mapping[str, str]) -> ssl.SSLContext:
    """Raises OSError for a file of certificates that cannot be read."""
    context = ssl.create_default_context(cafile=variables.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None)
    if variables.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
