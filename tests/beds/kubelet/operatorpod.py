"""The operator in a pod, installed with helm from the chart."""

import time

from beds.cluster import ClusterError, ControlPlane
from beds.cluster.build import tell
from beds.cluster.helm import CHART, Helm

RELEASE = "resnetboost"
NAMESPACE = "resnetboost-system"


def installation(chart: str) -> list[str]:
    """Arguments of `helm install`. The default pull policy IfNotPresent uses the images that the node has already."""
    return ["install", RELEASE, chart, "--namespace", NAMESPACE, "--create-namespace", "--wait"]


def deploy(plane: ControlPlane, *options: str) -> None:
    """Install the chart, wait until the operator is ready, and print the duration. options: further ones of helm."""
    started = time.monotonic()
    Helm.of(plane)(*installation(str(CHART)), "--timeout=5m", *options)
    tell(f"\ncluster: helm install ... ready after {time.monotonic() - started:.1f} s\n")


def replace(plane: ControlPlane) -> None:
    """Upgrade the release so that its pod is replaced; wait until the new one leads or is on standby."""
    where = (RELEASE, str(CHART), f"--namespace={NAMESPACE}")
    Helm.of(plane)("upgrade", *where, "--reuse-values", "--set=log.level=debug", "--wait", "--timeout=5m")


def log(plane: ControlPlane) -> str:
    """The operator's log, including that before its last restart."""
    command = ["logs", f"deployment/{RELEASE}", f"--namespace={NAMESPACE}", "--tail=60"]
    try:
        before = plane.kubectl(*command, "--previous")
    except ClusterError:
        before = ""
    return before + plane.kubectl(*command)
