"""One real node: containerd, kubelet and a name server beside a control plane of their own."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from beds.cluster import build
from beds.cluster.controlplane import ControlPlane
from beds.cluster.errors import ClusterError
from beds.kubelet import images, sandbox, texts, volumes
from beds.kubelet.sandbox import Sandbox

_KUBELET = "kubelet"
_SOCKET = "/run/containerd/containerd.sock"
_START_SECONDS = 120
_VOLUMES = "/api/v1/persistentvolumes"


class Bed:
    """A cluster with one real node, as a context manager, which removes every process, mount and file at the end.

    `plane` is the cluster's control plane. labels: of the node, in kubelet's syntax.
    """

    def __init__(self, crds: Sequence[Path] = (), labels: Mapping[str, str] | None = None) -> None:
        self._crds = crds
        self._labels = dict(labels or {})

    def __enter__(self) -> Self:
        self._programs = build.programs(build.NODE)
        with contextlib.ExitStack() as stack:
            self.sandbox = Sandbox()
            stack.callback(self.sandbox.close)
            self.folder = self.sandbox.folder
            images.give(self.folder / "lib" / "containerd")
            plane = ControlPlane(crds=self._crds, with_node_lifecycle=True, with_audit=True, place=self.sandbox)
            self.plane = stack.enter_context(plane)
            self._start()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def run(self, *command: str | Path) -> str:
        """Output of a command run inside the node. Raises `ClusterError` with its error message."""
        done = subprocess.run(self.sandbox.command(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def start_kubelet(self) -> None:
        """Start kubelet again with the same state; returns at once."""
        options = [
            f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={texts.NODE}",
            f"--node-ip={texts.GATEWAY}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in self._labels.items())}",
        ]
        self._start_program(_KUBELET, self._programs[_KUBELET], *options)

    def stop_kubelet(self) -> None:
        """Stop kubelet; its containers keep running."""
        self.plane.processes.end(_KUBELET)

    def add_volume(self, name: str) -> Path:
        """Create a volume on a new folder of the node, which pods may write to by their fsGroup; returns the folder."""
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True)
        self.plane.client.send("POST", _VOLUMES, volumes.volume(folder))
        wait = self.plane.processes.wait_until
        # A claim that is created before its volume exists is retried only after 15 s.
        wait(lambda: '"phase":"Available"' in self.plane.client.get(f"{_VOLUMES}/{name}"), "a volume")
        return folder

    def add_claim(self, namespace: str, name: str) -> Path:
        """Create a claim and the volume it is bound to; returns the volume's folder of the node."""
        folder = self.add_volume(f"{namespace}-{name}")
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        self.plane.client.send("POST", claims, volumes.claim(name, folder))
        return folder

    @property
    def plugins(self) -> Path:
        """Folder of the device plugins' sockets, by a path short enough for a socket."""
        short = self.plane.folder / "plugins"
        if not short.is_symlink():
            short.symlink_to(self.folder / "lib" / "kubelet" / "device-plugins")
        return short

    def node(self) -> dict[str, Any]:
        """The node object from the API server."""
        found: dict[str, Any] = json.loads(self.plane.client.get(f"/api/v1/nodes/{texts.NODE}"))
        return found

    def is_ready(self) -> bool:
        """Whether the node is ready for pods."""
        try:
            conditions = self.node()["status"]["conditions"]
        except OSError:
            return False
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def _start(self) -> None:
        wait = self.plane.processes.wait_until
        (self.folder / "containerd.toml").write_text(
            texts.containerd("/var/lib/containerd", "/run/containerd", _SOCKET, self.folder / "network")
        )
        (self.folder / "network").mkdir()
        (self.folder / "network" / "pods.conflist").write_text(texts.network())
        self._start_program("containerd", "containerd", "--config", self.folder / "containerd.toml")
        self._start_name_server()
        wait((self.folder / "run" / "containerd" / "containerd.sock").exists, "containerd")
        self._kubeconfig = self.plane.identity(f"system:node:{texts.NODE}", "system:nodes")
        server = self.plane.server_certificate(texts.NODE, f"IP:{texts.GATEWAY}")
        (self.folder / "kubelet.json").write_text(texts.kubelet(f"/{self.sandbox.name}", self.plane.ca, server))
        self.start_kubelet()
        wait(self.is_ready, "a ready node", _START_SECONDS)

    def _start_name_server(self) -> None:
        file = self.folder / "Corefile"
        file.write_text(texts.name_server(self.plane.kubeconfig))
        self._start_program("coredns", self._programs["coredns"], "-conf", file)

    def _start_program(self, name: str, *command: str | Path) -> None:
        self.plane.processes.start(name, *self.sandbox.command(*command), vital=True)


def unavailable() -> str:
    """Why there can be no node here, and how to fix it; empty if there can."""
    if reason := sandbox.unavailable() or build.unavailable((*build.CONTROL_PLANE, *build.NODE)):
        return reason
    places = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in images.PROGRAMS if not shutil.which(name, path=places)]
    if missing or not Path("/usr/lib/cni/bridge").exists():
        return f"there is no {', '.join(missing) or 'CNI plugin'} here; run scripts/install-system-packages"
    return ""
