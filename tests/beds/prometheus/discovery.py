"""Kubernetes service discovery for a Prometheus without it, such as Debian's: writes targets to files it watches.

Labels are those of discovery/kubernetes/pod.go and endpoints.go, as far as our monitors use them; the scrape
configuration selects the targets.
"""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from beds.cluster.client import Client

Manifest = dict[str, Any]
Labels = dict[str, str]

PODS, ENDPOINTS = "pods.json", "endpoints.json"
_PERIOD_SECONDS = 0.5
_META = "__meta_kubernetes"


class Discovery:
    """Writes target files to `folder`, as a context manager."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.folder = folder
        self._client = client
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(_PERIOD_SECONDS):
            try:
                self._look()
            except OSError:  # the API server may be restarting
                continue

    def _look(self) -> None:
        pods, services, endpoints = (self._all(plural) for plural in ("pods", "services", "endpoints"))
        _write(self.folder / PODS, list(pod_targets(pods)))
        _write(self.folder / ENDPOINTS, list(endpoint_targets(endpoints, services, pods)))

    def _all(self, plural: str) -> list[Manifest]:
        found: list[Manifest] = json.loads(self._client.get(f"/api/v1/{plural}"))["items"]
        return found


def pod_targets(pods: list[Manifest]) -> Iterator[Manifest]:
    """One target per port of each container, as soon as the pod has an address."""
    for pod in pods:
        address = pod["status"].get("podIP")
        for container in pod["spec"]["containers"] if address else ():
            for port in container.get("ports", ()):
                labels = {**_pod_labels(pod), **_container_labels(container), **_port_labels(port)}
                yield _target(f"{address}:{port['containerPort']}", labels)


def endpoint_targets(endpoints: list[Manifest], services: list[Manifest], pods: list[Manifest]) -> Iterator[Manifest]:
    """One target per port of each ready address, with the labels of its service and its pod."""
    known_services = {_key(service): service for service in services}
    known_pods = {pod["metadata"]["uid"]: pod for pod in pods}
    for found in endpoints:
        service = known_services.get(_key(found))
        for subset in found.get("subsets") or () if service else ():
            for address in subset.get("addresses", ()):
                pod = known_pods.get(address.get("targetRef", {}).get("uid"))
                for port in subset["ports"]:
                    labels = {f"{_META}_endpoint_port_name": port.get("name", "")}
                    labels |= _object_labels("service", service) if service else {}
                    labels |= _of_pod(pod, port["port"]) if pod else {}
                    yield _target(f"{address['ip']}:{port['port']}", labels)


def _of_pod(pod: Manifest, number: int) -> Labels:
    """Labels of the pod behind an endpoint, and of its container with this port."""
    labels = _pod_labels(pod)
    for container in pod["spec"]["containers"]:
        if any(port["containerPort"] == number for port in container.get("ports", ())):
            labels |= _container_labels(container)
    return labels


def _pod_labels(pod: Manifest) -> Labels:
    return _object_labels("pod", pod) | {f"{_META}_pod_phase": pod["status"]["phase"]}


def _container_labels(container: Manifest) -> Labels:
    return {f"{_META}_pod_container_name": container["name"]}


def _port_labels(port: Manifest) -> Labels:
    return {f"{_META}_pod_container_port_name": port.get("name", "")}


def _object_labels(kind: str, found: Manifest) -> Labels:
    metadata = found["metadata"]
    labels = {f"{_META}_namespace": metadata["namespace"], f"{_META}_{kind}_name": metadata["name"]}
    for name, value in metadata.get("labels", {}).items():
        labels[f"{_META}_{kind}_label_{sanitized(name)}"] = value
        labels[f"{_META}_{kind}_labelpresent_{sanitized(name)}"] = "true"
    return labels


def _target(address: str, labels: Labels) -> Manifest:
    return {"targets": [address], "labels": labels}


def _key(found: Manifest) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def sanitized(label: str) -> str:
    """A label name as Prometheus sanitizes it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _write(path: Path, content: list[Manifest]) -> None:
    """Write a file atomically, and only if it has changed."""
    text = json.dumps(content)
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(".part")
        part.write_text(text)
        part.rename(path)
