"""Kills or inspects a pod's container on the node, without the API server."""

import json
from typing import Any

from beds.kubelet.bed import Bed
from resnetboost_api import names


def kill(bed: Bed, namespace: str, pod: str, signal: str = "KILL") -> None:
    """Send a signal to the first process of a pod's trainer container."""
    wanted = container_id(bed, namespace, pod)
    for line in bed.run("ctr", "--namespace", "k8s.io", "tasks", "ls").splitlines()[1:]:
        task, process, *_ = line.split()
        if task == wanted:
            bed.run("kill", f"-{signal}", process)
            return
    raise AssertionError(f"no task {wanted} runs")


def container_id(bed: Bed, namespace: str, pod: str) -> str:
    """containerd's id of a pod's trainer container."""
    return str(trainer(bed, namespace, pod)["containerID"]).removeprefix("containerd://")


def trainer(bed: Bed, namespace: str, pod: str) -> dict[str, Any]:
    """Status of a pod's trainer container."""
    manifest = json.loads(bed.plane.client.get(f"/api/v1/namespaces/{namespace}/pods/{pod}"))
    statuses = manifest["status"]["containerStatuses"]
    found: dict[str, Any] = next(status for status in statuses if status["name"] == names.CONTAINER)
    return found
