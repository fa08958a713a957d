"""Users of a control plane: certificates, and kubeconfig files made from certificates or tokens."""

import base64
import json
from pathlib import Path

from beds.cluster.certificates import Authority, Pair
from beds.cluster.client import Client

SERVICE = "10.96.0.1"  # the API server's address for pods, the first one of the service range
MASTERS = "system:masters"  # the group with all rights


class Identities:
    """All files go into one folder; the kubeconfigs are self-contained."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._authority = Authority(folder)
        self.ca = self._authority.pair.certificate
        self.server = self._authority.issue("kube-apiserver", addresses=f"IP:127.0.0.1,DNS:localhost,IP:{SERVICE}")
        self.kubelets = self._authority.issue("kube-apiserver-kubelet-client", MASTERS)
        self.tokens = self._authority.issue("service-accounts")

    def client(self, user: str) -> Client:
        """A client with all rights."""
        return Client(self._url, self.ca, self._authority.issue(user, MASTERS))

    def certificate(self, name: str, addresses: str) -> Pair:
        """Issue a server's certificate."""
        return self._authority.issue(name, addresses=addresses)

    def kubeconfig(self, user: str, group: str = "") -> Path:
        """The kubeconfig of a user with a certificate."""
        pair = self._authority.issue(user, group)
        credentials = {"client-certificate-data": _encoded(pair.certificate), "client-key-data": _encoded(pair.key)}
        return self._write(user, credentials, "default")

    def token_kubeconfig(self, namespace: str, account: str, token: str) -> Path:
        """The kubeconfig of a service account with a token."""
        return self._write(f"{namespace}-{account}", {"token": token}, namespace)

    def _write(self, name: str, credentials: dict[str, str], namespace: str) -> Path:
        """Write a kubeconfig as JSON, which is valid YAML."""
        server = {"server": self._url, "certificate-authority-data": _encoded(self.ca)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": name, "user": credentials}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name, "namespace": namespace}}],
            "current-context": "test",
        }
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(content, indent=1))
        return path


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
