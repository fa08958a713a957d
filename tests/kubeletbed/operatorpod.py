"""The operator as users run it: a Deployment of its own image under its own account; what it does is not looked at."""

from typing import Any

from cluster import ClusterError, ControlPlane
from kubeletbed import images
from operatorbed.account import NAME, NAMESPACE, Account

_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_LABELS = {"app.kubernetes.io/name": NAME}


def deploy(plane: ControlPlane) -> None:
    """Give it its rights, start it, and wait until it is ready."""
    Account(plane)
    plane.client.send("POST", _PATH, _deployment())
    plane.kubectl("rollout", "status", f"deployment/{NAME}", f"--namespace={NAMESPACE}", "--timeout=120s")


def log(plane: ControlPlane) -> str:
    """What it said so far, before its last restart too."""
    command = ["logs", f"deployment/{NAME}", f"--namespace={NAMESPACE}", "--tail=60"]
    try:
        before = plane.kubectl(*command, "--previous")
    except ClusterError:
        before = ""
    return before + plane.kubectl(*command)


def _deployment() -> dict[str, Any]:
    container = {
        "name": "operator",
        "image": images.OPERATOR.tag,
        "imagePullPolicy": "Never",
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod = {
        "serviceAccountName": NAME,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": _LABELS}, "template": template}
    return {"metadata": {"name": NAME}, "spec": spec}
