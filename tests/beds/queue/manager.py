"""The real Kueue: the objects of its chart in a control plane, and its controller manager beside it."""

import base64
import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from beds.cluster import ControlPlane, build
from beds.cluster.controlplane import Here, Place
from beds.cluster.helm import Helm
from beds.ports import free_port

Manifest = dict[str, Any]

NAMESPACE = "kueue-system"
ACCOUNT = "kueue-controller-manager"
_MODULE = "sigs.k8s.io/kueue"
_PROGRAM = "kueue"
# What its pod would need, and what serves an API of its own. The chart's configuration is read before.
_LEFT_OUT = ("APIService", "ConfigMap", "Deployment", "Secret", "Service")
_CONFIGURATION = "controller_manager_config.yaml"
_DEFINITION = "CustomResourceDefinition"
_METRICS = "/etc/kueue/metrics/certs"
_SECONDS = 60


class Manager:
    """Kueue's controller manager, with the rights of its chart's service account.

    The constructor installs the chart's objects. place: where it runs, if the API server does not run here; its
    webhooks lead to the loopback there.
    """

    def __init__(self, plane: ControlPlane, place: Place | None = None) -> None:
        self._plane = plane
        self._place: Place = place or Here()
        self._program = build.programs(build.KUEUE)["kueue"]
        self._webhook_port, self._health_port = free_port(), free_port()
        self._certificates = plane.folder / "kueue-certificates"
        self._save_certificate()
        rendered = list(self._rendered())
        self._configuration = _configuration(rendered)
        plane.client.send("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        definitions = [found for found in rendered if found["kind"] == _DEFINITION]
        self._create(definitions)
        plane.until_established(*(f"crd/{found['metadata']['name']}" for found in definitions))
        self._create([found for found in rendered if found["kind"] not in (_DEFINITION, *_LEFT_OUT)])
        self._kubeconfig = plane.token_kubeconfig(NAMESPACE, ACCOUNT)
        self._place.open(plane.processes, self._health_port)

    def start(self, external_frameworks: Sequence[str] = ()) -> None:
        """Start it and wait until its webhooks answer.

        external_frameworks: kinds whose pods Kueue leaves alone, as in its configuration's `integrations`.
        """
        file = self._plane.folder / "kueue.json"
        file.write_text(json.dumps(self._configured(external_frameworks)))
        processes = self._plane.processes
        # The visibility API is a server of its own, which wants a service.
        options = [f"--config={file}", f"--kubeconfig={self._kubeconfig}", "--feature-gates=VisibilityOnDemand=false"]
        command = self._place.command(*self._in_its_image(), self._program, *options)
        processes.start(_PROGRAM, *command, vital=True)
        processes.wait_until(self._is_ready, "Kueue", _SECONDS)

    def stop(self) -> None:
        """Stop it."""
        self._plane.processes.end(_PROGRAM)

    def _configured(self, external_frameworks: Sequence[str]) -> Manifest:
        """The chart's configuration, at this machine's ports and with certificates that need no rotation."""
        given = self._configuration
        return {
            **given,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhook_port, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {**given["integrations"], "externalFrameworks": list(external_frameworks)},
        }

    def _in_its_image(self) -> list[str]:
        """The start of its command line: it finds the certificate of its metrics at the only place where it looks."""
        inner = f'mount -t tmpfs none /etc && mkdir -p {_METRICS} && cp {self._certificates}/* {_METRICS} && exec "$@"'
        rights = ["--map-root-user"] if os.geteuid() else []
        return ["unshare", "--mount", *rights, "sh", "-c", inner, "sh"]

    def _create(self, manifests: Sequence[Manifest]) -> None:
        items = [self._at_hand(found) for found in manifests]
        self._plane.kubectl(
            "create", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        )

    def _save_certificate(self) -> None:
        pair = self._plane.server_certificate("kueue-webhook", "IP:127.0.0.1")
        self._certificates.mkdir()
        (self._certificates / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (self._certificates / "tls.key").write_bytes(pair.key.read_bytes())

    def _rendered(self) -> Iterator[Manifest]:
        """What Kueue's own chart installs."""
        chart = build.module("kueue", _MODULE) / "charts" / "kueue"
        text = Helm.of(self._plane)("template", "kueue", chart, f"--namespace={NAMESPACE}")
        return (found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found)

    def _at_hand(self, manifest: Manifest) -> Manifest:
        """The object, with loopback in place of the webhook's service."""
        conversion = manifest.get("spec", {}).get("conversion", {}).get("webhook")
        for webhook in [*manifest.get("webhooks", ()), *([conversion] if conversion else ())]:
            path = webhook["clientConfig"]["service"]["path"]
            authority = base64.b64encode(self._plane.ca.read_bytes()).decode()
            url = f"https://127.0.0.1:{self._webhook_port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": authority}
        return manifest

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health_port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _configuration(manifests: Sequence[Manifest]) -> Manifest:
    """Kueue's configuration, in one of the chart's config maps."""
    maps = (found["data"] for found in manifests if found["kind"] == "ConfigMap")
    text = next(data[_CONFIGURATION] for data in maps if _CONFIGURATION in data)
    configuration: Manifest = yaml.safe_load(text)
    return configuration
