"""The operator in a pod, installed with helm from the chart."""

import time

from beds.cluster import ClusterError, ControlPlane
from beds.cluster.build import tell
from beds.cluster.helm import CHART, Helm

RELEASE = "resnetboost"
NAMESPACE = "resnetboost-system"


def installation(chart: str) -> list[str]:
    """What to tell helm. The images are on the node already, and no value says so: IfNotPresent is the default."""
    return ["install", RELEASE, chart, "--namespace", NAMESPACE, "--create-namespace", "--wait"]


def deploy(plane: ControlPlane, *options: str) -> None:
    """Install it, which waits until it is ready, and tell how long that took. options: further ones of helm."""
    started = time.monotonic()
    Helm.of(plane)(*installation(str(CHART)), "--timeout=5m", *options)
    tell(f"\ncluster: helm install ... ready after {time.monotonic() - started:.1f} s\n")


def replace(plane: ControlPlane) -> None:
    """Upgrade the release so that its pod gives way to another one; waits until that leads or stands by."""
    where = (RELEASE, str(CHART), f"--namespace={NAMESPACE}")
    Helm.of(plane)("upgrade", *where, "--reuse-values", "--set=log.level=debug", "--wait", "--timeout=5m")


def log(plane: ControlPlane) -> str:
    """What it said so far, before its last restart too."""
    command = ["logs", f"deployment/{RELEASE}", f"--namespace={NAMESPACE}", "--tail=60"]
    try:
        before = plane.kubectl(*command, "--previous")
    except ClusterError:
        before = ""
    return before + plane.kubectl(*command)
