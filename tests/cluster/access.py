"""Ways to the API server: kubeconfig files, and plain requests for what kubectl is too slow for."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cluster.certificates import Pair
from cluster.errors import ClusterError

_TIMEOUT_SECONDS = 30


class Client:
    """Sends requests as the owner of a certificate."""

    def __init__(self, url: str, authority: Path, user: Pair) -> None:
        self._url = url
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(user.certificate, user.key)

    def get(self, path: str) -> str:
        """The answer as text; raises `OSError` if there is none or it is an error."""
        with urllib.request.urlopen(self._url + path, context=self._tls, timeout=_TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())

    def answers(self, path: str) -> bool:
        """Whether there is a good answer by now."""
        try:
            self.get(path)
        except OSError:
            return False
        return True

    def send(self, method: str, path: str, body: Any, content_type: str = "application/json") -> dict[str, Any]:
        """Send an object; returns the one that comes back. Raises `ClusterError` with the server's words."""
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), {"Content-Type": content_type}, method=method
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=_TIMEOUT_SECONDS) as answer:
                returned: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ClusterError(f"{method} {path}: {json.load(error).get('message')}") from None
        return returned


def certificate_user(pair: Pair) -> dict[str, str]:
    """The user of a kubeconfig who has a certificate."""
    return {"client-certificate-data": encoded(pair.certificate), "client-key-data": encoded(pair.key)}


def write_kubeconfig(path: Path, url: str, authority: Path, user: dict[str, str], namespace: str = "default") -> Path:
    """Write a kubeconfig that needs no other file; JSON is YAML too."""
    server = {"server": url, "certificate-authority-data": encoded(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(content, indent=1))
    path.chmod(0o600)
    return path


def encoded(path: Path) -> str:
    """A file's bytes in base64."""
    return base64.b64encode(path.read_bytes()).decode()
