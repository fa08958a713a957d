"""Plays Kueue's webhook for pods where a namespace has a LocalQueue `default`: it holds each pod back with a gate."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from beds.cluster import ControlPlane

GATE = "kueue.x-k8s.io/admission"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@contextmanager
def gating(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """Give every new pod of the namespace the gate."""
    pair = plane.server_certificate(f"webhook-{namespace}", "IP:127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, name="webhook", daemon=True).start()
        plane.client.send("POST", _CONFIGURATIONS, _configuration(plane, namespace, server.server_port))
        try:
            yield
        finally:
            plane.client.send("DELETE", f"{_CONFIGURATIONS}/{namespace}")
            server.shutdown()


def _configuration(plane: ControlPlane, namespace: str, port: int) -> dict[str, object]:
    authority = base64.b64encode(plane.ca.read_bytes()).decode()
    return {
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "mpod.kueue.test",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": authority},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            }
        ],
    }


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        patch = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch"}
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
