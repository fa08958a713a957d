"""Kills, slows down or inspects a pod's container, or the rank in it, on the node, without the API server."""

import json
from typing import Any

from beds.kubelet.bed import Bed
from beds.kubelet.sandbox import GROUPS
from resnetboost_api import names

_PERIOD_MICROSECONDS = 100_000  # of CPU quotas, as kubelet sets it


def kill(bed: Bed, namespace: str, pod: str, signal: str = "KILL") -> None:
    """Send a signal to the first process of a pod's trainer container."""
    bed.run("kill", f"-{signal}", _first_process(bed, namespace, pod))


def kill_rank(bed: Bed, namespace: str, pod: str, signal: str = "KILL") -> None:
    """Send a signal to the rank in a pod other than the leader's: the first process, or the youngest below it with a
    launcher.
    """
    process = _first_process(bed, namespace, pod)
    while children := bed.run("sh", "-c", f"pgrep --parent {process} || true").split():
        (process,) = children
    bed.run("kill", f"-{signal}", process)


def slow_down(bed: Bed, namespace: str, pod: str, share: float) -> None:
    """Leave a pod's trainer container only this share of one CPU."""
    quota = int(share * _PERIOD_MICROSECONDS)
    groups = bed.run("cat", f"/proc/{_first_process(bed, namespace, pod)}/cgroup").splitlines()
    by_controller = {name: group for _, of, group in (line.split(":", 2) for line in groups) for name in of.split(",")}
    file, text = (
        (f"cpu{by_controller['cpu']}/cpu.cfs_quota_us", f"{quota}")  # cgroup v1
        if "cpu" in by_controller
        else (f"{by_controller['']}/cpu.max", f"{quota} {_PERIOD_MICROSECONDS}")
    )
    bed.run("sh", "-c", 'echo "$2" > "$1"', "sh", GROUPS / file.lstrip("/"), text)


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
