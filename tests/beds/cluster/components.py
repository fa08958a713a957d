"""Command lines of the control plane's components.

All data is temporary, so nothing is synced to disk; all addresses are loopback or sockets in the working directory.
"""

from pathlib import Path

from beds.cluster.identities import Identities

STAGES = Path(__file__).with_name("kwok")
# The default of 20 requests/s is what a test at scale would measure; and each is the only one of its kind.
_CONTROLLER = ("--kube-api-qps=2000", "--kube-api-burst=4000", "--leader-elect=false", "--secure-port=0")


def etcd() -> list[str]:
    """Listening on sockets there are no ports to find; those it must advertise nobody calls."""
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
        "--endpoint-reconciler-type=none",  # it refuses loopback addresses
        "--shutdown-watch-termination-grace-period=1s",  # else its end waits a minute for watches to end
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
    """Added to the API server's: write down requests."""
    return [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]


def untainted_nodes() -> list[str]:
    """Added to the API server's: new nodes take pods at once, without the controller that finds them healthy."""
    return ["--disable-admission-plugins=TaintNodesByCondition"]


def controller_manager(kubeconfig: Path, identities: Identities, with_node_lifecycle: bool) -> list[str]:
    """Without the node lifecycle, nodes without a kubelet are never taken for lost."""
    return [
        *_CONTROLLER,
        f"--kubeconfig={kubeconfig}",
        f"--root-ca-file={identities.ca}",
        f"--service-account-private-key-file={identities.tokens.key}",
        "--use-service-account-credentials",  # RBAC knows the controllers by their own names only
        "--controllers=*" if with_node_lifecycle else "--controllers=*,-node-lifecycle-controller",
    ]


def scheduler(kubeconfig: Path) -> list[str]:
    """With its default plugins."""
    return [*_CONTROLLER, f"--kubeconfig={kubeconfig}"]


def kwok(kubeconfig: Path) -> list[str]:
    """For the pods on nodes with kwok's annotation; stages say what becomes of them."""
    stages = [f"--config={path}" for path in sorted(STAGES.glob("*.yaml"))]
    return [
        f"--kubeconfig={kubeconfig}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--cidr=127.244.0.0/16",
        *stages,
    ]
