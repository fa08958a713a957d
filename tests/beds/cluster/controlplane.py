"""The control plane as a context manager, and its operations for tests: nodes, kubectl, restarts, audit log."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from beds.cluster import audit, build, components, nodes, releases
from beds.cluster.certificates import Pair
from beds.cluster.errors import ClusterError
from beds.cluster.identities import MASTERS, Identities
from beds.cluster.processes import Processes
from beds.cluster.releases import Release

_APISERVER = "kube-apiserver"
_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
_KUBECTL_SECONDS = 300


class Place(Protocol):
    """Where the control plane's programs run: beside the test or in a sandbox."""

    @property
    def folders(self) -> Sequence[Path]:
        """Folders to remove at the end."""

    def open(self, processes: Processes, port: int) -> None:
        """Create the place, and forward this machine's loopback port to it."""

    def command(self, *command: str | Path) -> Sequence[str | Path]:
        """The command line that runs a command there."""


class Here:
    """On this machine, beside the test."""

    folders: Sequence[Path] = ()

    def open(self, processes: Processes, port: int) -> None:
        """Do nothing."""

    def command(self, *command: str | Path) -> Sequence[str | Path]:
        """The command, unchanged."""
        return command


class ControlPlane:
    """A control plane as a context manager, which stops every process and removes every file at the end.

    crds: files of CRDs to install before the garbage collector discovers kinds; it would take up to 30 s to notice
    later ones.
    with_audit: log every request, for `requests`.
    with_node_lifecycle: count nodes that do not report as lost after 40 s and evict their pods.
    folder: a new one in which logs and data are kept; by default they go to a temporary one.
    place: where its programs run.
    release: which Kubernetes; `releases.WITH_GANGS` has a scheduler that places the pods of a PodGroup together.
    """

    def __init__(
        self,
        *,
        crds: Sequence[Path] = (),
        with_audit: bool = False,
        with_node_lifecycle: bool = False,
        folder: Path | None = None,
        place: Place | None = None,
        release: Release = releases.DEFAULT,
    ) -> None:
        self._crds = crds
        self._with_audit = with_audit
        self._with_node_lifecycle = with_node_lifecycle
        self._kept_folder = folder
        self._place: Place = place or Here()
        self._release = release

    def __enter__(self) -> Self:
        built = build.programs(self._release.programs.values())
        self._programs = {part: built[name] for part, name in self._release.programs.items()}
        with contextlib.ExitStack() as stack:
            self.folder = self._make_folder()
            self.processes = Processes(self.folder, self._kept_folder is not None, self._place.folders)
            stack.callback(self.processes.stop)
            self._port = stack.enter_context(_reserved_port())
            self._place.open(self.processes, self._port)
            self._identities = Identities(self.folder, self.url)
            self.client = self._identities.client("probe")
            self.kubeconfig = self._identities.kubeconfig("admin", MASTERS)
            self._start()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def url(self) -> str:
        """URL of the API server, on loopback only."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca(self) -> Path:
        """CA certificate of the API server."""
        return self._identities.ca

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object a line."""
        return self.folder / "audit.log"

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Output of kubectl, run as administrator; raises `ClusterError` with its error message."""
        done = subprocess.run(
            [self._programs["kubectl"], *arguments],
            env={**os.environ, **self.environment()},
            input=input,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ClusterError(done.stderr.strip())
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Environment that makes kubectl and clients administrators of this cluster, with its own discovery cache."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl-cache"),
            "PATH": f"{self._programs['kubectl'].parent}:{os.environ['PATH']}",
        }

    def token_kubeconfig(self, namespace: str, service_account: str) -> Path:
        """The kubeconfig of an existing service account, with a token that is valid for a day."""
        token = self.kubectl("create", "token", service_account, f"--namespace={namespace}", "--duration=24h").strip()
        return self._identities.token_kubeconfig(namespace, service_account, token)

    def identity(self, user: str, group: str) -> Path:
        """The kubeconfig of a user with a certificate, for another component of the cluster."""
        return self._identities.kubeconfig(user, group)

    def server_certificate(self, name: str, addresses: str) -> Pair:
        """A certificate for another server of the cluster; addresses are in openssl's syntax."""
        return self._identities.certificate(name, addresses)

    def restart_apiserver(self, kill: bool = False) -> None:
        """Stop or kill the API server and start it at the same address; returns when it serves again."""
        self.stop_apiserver(kill)
        self.start_apiserver()

    def stop_apiserver(self, kill: bool = False) -> None:
        """Stop or kill the API server."""
        self.processes.end(_APISERVER, signal.SIGKILL if kill else signal.SIGTERM)

    def start_apiserver(self) -> None:
        """Start the API server; returns when it serves."""
        self._start_program(_APISERVER, self._apiserver_options())
        self.processes.wait_until(lambda: self.client.answers("/readyz"), "the API server")

    def restart_controller_manager(self) -> None:
        """Restart it: its garbage collector forgets objects whose owner came and went while an API server was away."""
        self.processes.end("kube-controller-manager")
        self._start_program("kube-controller-manager", self._controller_manager_options())

    def metrics(self) -> str:
        """The API server's metrics in Prometheus' text format."""
        return self.client.get("/metrics")

    def requests(self, user: str = "", since: int = 0) -> Iterator[audit.Request]:
        """Requests the API server has answered so far, of one user or of all; needs `with_audit`.

        since: size of the audit log, in bytes, when the first of them could come.
        """
        return audit.read(self.audit_log, user, since)

    def add_node(self, name: str, allocatable: Mapping[str, str] | None = None) -> None:
        """Add a ready node, optionally with extended resources; no kubelet handles the pods bound to it."""
        self.client.send("POST", "/api/v1/nodes", nodes.manifest(name, allocatable or {}))

    def add_kwok_nodes(self, count: int, allocatable: Mapping[str, str] | None = None) -> None:
        """Add nodes kwok-0, kwok-1, ... whose pods run at once, stay so, and go when deleted: see kwok/."""
        for number in range(count):
            self.add_kwok_node(f"kwok-{number}", allocatable)

    def add_kwok_node(
        self, name: str, allocatable: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add one such node."""
        if not self.processes.runs("kwok"):
            self._programs |= build.programs(["kwok"])
            self._start_program("kwok", components.kwok(self._identities.kubeconfig("kwok", MASTERS)))
        self.client.send("POST", "/api/v1/nodes", nodes.manifest(name, allocatable or {}, nodes.KWOK, labels))

    def _make_folder(self) -> Path:
        if self._kept_folder is None:
            return Path(tempfile.mkdtemp(prefix="resnetboost-"))  # short: it holds sockets
        try:
            self._kept_folder.mkdir(parents=True)
        except OSError as error:
            raise ClusterError(f"the folder {error.filename}: {error.strerror}; name a new one") from None
        return self._kept_folder.resolve()

    def until_established(self, *kinds: str) -> None:
        """Wait for definitions of kinds, as arguments of kubectl, whose `wait` fails before they have a condition."""

        def established() -> bool:
            found = json.loads(self.kubectl("get", *kinds, "--output=json"))
            return all(map(_is_established, found.get("items", [found])))

        self.processes.wait_until(established, f"the kind of {' '.join(kinds)}")

    def _start(self) -> None:
        self._start_program("etcd", components.etcd())
        self.start_apiserver()
        for crd in self._crds:
            self.kubectl("create", f"--filename={crd}")
            self.until_established(f"--filename={crd}")
        self._start_program("kube-controller-manager", self._controller_manager_options())
        self._start_program(
            "kube-scheduler", components.scheduler(self._identities.kubeconfig("system:kube-scheduler"))
        )
        self.processes.wait_until(lambda: self.client.answers(_DEFAULT_ACCOUNT), "the default service account")

    def _start_program(self, name: str, options: list[str]) -> None:
        own = self._release.options.get(name, ())
        self.processes.start(name, *self._place.command(self._programs[name], *options, *own), vital=True)

    def _apiserver_options(self) -> list[str]:
        options = components.apiserver(self._port, self._identities)
        if self._with_audit:
            policy = self.folder / "audit-policy.json"
            policy.write_text(json.dumps(audit.POLICY))
            options += components.auditing(policy, self.audit_log)
        if not self._with_node_lifecycle:
            options += components.untainted_nodes()
        return options

    def _controller_manager_options(self) -> list[str]:
        kubeconfig = self._identities.kubeconfig("system:kube-controller-manager")
        return components.controller_manager(kubeconfig, self._identities, self._with_node_lifecycle)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserve a free port: a socket that does not listen holds it, and shares it with processes of this user."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _is_established(kind: dict[str, Any]) -> bool:
    conditions = kind.get("status", {}).get("conditions") or ()
    return any((found["type"], found["status"]) == ("Established", "True") for found in conditions)
