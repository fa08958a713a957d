"""Kills or inspects a pod's container, or the rank in it, on the node, without the API server."""

import json
from typing import Any

from beds.kubelet.bed import Bed
from resnetboost_api import names


def kill(bed: Bed, namespace: str, pod: str, signal: str = "KILL") -> None:
    """Send a signal to the first process of a pod's trainer container."""
    bed.run("kill", f"-{signal}", _first_process(bed, namespace, pod))


def kill_rank(bed: Bed, namespace: str, pod: str) -> None:
    """Kill the rank in a pod other than the leader's: the first process, or the youngest below it with a launcher."""
    process = _first_process(bed, namespace, pod)
    while children := bed.run("sh", "-c", f"pgrep --parent {process} || true").split():
        (process,) = children
    bed.run("kill", "-KILL", process)


def _first_process(bed: Bed, namespace: str, pod: str) -> str:
    wanted = container_id(bed, namespace, pod)
    for line in bed.run("ctr", "--namespace", "k8s.io", "tasks", "ls").splitlines()[1:]:
        task, process, *_ = line.split()
        if task == wanted:
            return process
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
