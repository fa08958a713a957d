"""Command lines of the control plane's components.

All data is temporary, so nothing is synced to disk; all addresses are loopback or sockets in the working directory.
"""

from pathlib import Path

from beds.cluster.identities import Identities

_LOG_MEGABYTES = 100_000
STAGES = Path(__file__).with_name("kwok")
# With the default of 20 requests/s, tests at scale would measure that limit. Each component has only one replica.
_CONTROLLER = ("--kube-api-qps=2000", "--kube-api-burst=4000", "--leader-elect=false", "--secure-port=0")


def etcd() -> list[str]:
    """On Unix sockets, so that no free ports are needed; nobody connects to the advertised URLs."""
    return [
        "--data-dir=etcd",
        "--listen-client-urls=unix://etcd.sock",
        "--listen-peer-urls=unix://etcd-peer.sock",
        "--advertise-client-urls=http://localhost:2379",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(port: int, identities: Identities) -> list[str]:
    """`port` may be held by a socket of the same user with SO_REUSEPORT."""
    return [
        "--etcd-servers=unix://etcd.sock",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing=true",
        "--endpoint-reconciler-type=none",  # loopback addresses are refused as endpoints
        "--shutdown-watch-termination-grace-period=1s",  # otherwise shutdown waits a minute for watches to end
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={identities.kubelets.certificate}",
        f"--kubelet-client-key={identities.kubelets.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--client-ca-file={identities.ca}",
        f"--tls-cert-file={identities.server.certificate}",
        f"--tls-private-key-file={identities.server.key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={identities.tokens.certificate}",
        f"--service-account-signing-key-file={identities.tokens.key}",
    ]


def auditing(policy: Path, log: Path) -> list[str]:
    """Options that make the API server log requests, all in one file: by default it begins another after 100 MB."""
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}", f"--audit-log-maxsize={_LOG_MEGABYTES}"]


def untainted_nodes() -> list[str]:
    """Options that let new nodes take pods at once, without the controller that marks them healthy."""
    return ["--disable-admission-plugins=TaintNodesByCondition"]


def controller_manager(kubeconfig: Path, identities: Identities, with_node_lifecycle: bool) -> list[str]:
    """Without the node lifecycle controller, nodes without a kubelet never count as lost."""
    return [
        *_CONTROLLER,
        f"--kubeconfig={kubeconfig}",
        f"--root-ca-file={identities.ca}",
        f"--service-account-private-key-file={identities.tokens.key}",
        "--use-service-account-credentials",  # RBAC has roles for the controllers' own names only
        "--controllers=*" if with_node_lifecycle else "--controllers=*,-node-lifecycle-controller",
    ]


def scheduler(kubeconfig: Path) -> list[str]:
    """With its default plugins."""
    return [*_CONTROLLER, f"--kubeconfig={kubeconfig}"]


def kwok(kubeconfig: Path) -> list[str]:
    """For pods on nodes with kwok's annotation; the stages define their status changes."""
    stages = [f"--config={path}" for path in sorted(STAGES.glob("*.yaml"))]
    return [
        f"--kubeconfig={kubeconfig}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--cidr=127.244.0.0/16",
        *stages,
    ]
