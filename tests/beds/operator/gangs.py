"""Jobs of one namespace whose gangs wait for devices: places them, ends their pods, reads their PodGroups.

For a cluster whose scheduler reads PodGroups of scheduling.k8s.io (`releases.WITH_GANGS`) and whose nodes are kwok's.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from beds.cluster import ControlPlane
from beds.cluster.nodes import RESOURCE
from beds.operator.jobs import job
from beds.operator.namespace import Space
from beds.operator.wait import PATIENCE_SECONDS, eventually
from resnetboost_api import names

Manifest = dict[str, Any]

PATH = "/apis/scheduling.k8s.io/v1alpha2"
RACK = "example.com/rack"  # a label of nodes


def device_job(name: str, ranks: int = 4, *, per_node: int | None = None, **scheduling: Any) -> Manifest:
    """A job whose ranks have one device each; `scheduling` are fields of its spec.scheduling."""
    device: Manifest = {"type": "GPU", "count": ranks, "resourceName": RESOURCE}
    if per_node is not None:
        device["perNode"] = per_node
    manifest = job(name, device=device)
    if scheduling:
        manifest["spec"]["scheduling"] = scheduling
    return manifest


def in_rack(key: str = RACK) -> Manifest:
    """`schedulingConstraints` of a gang that shares one value of that label."""
    return {"topology": [{"key": key}]}


class Gangs(Space):
    """A namespace's jobs, pods and PodGroups."""

    def __init__(self, plane: ControlPlane, namespace: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(plane, namespace, patience_seconds)
        self._groups = f"{PATH}/namespaces/{namespace}/podgroups"

    def groups(self) -> list[Manifest]:
        """All PodGroups, by name."""
        found = json.loads(self.plane.client.get(self._groups))["items"]
        return sorted(found, key=lambda group: str(group["metadata"]["name"]))

    def group_names(self) -> list[str]:
        """Names of all PodGroups."""
        return [str(group["metadata"]["name"]) for group in self.groups()]

    def verdict(self, group: str) -> Manifest:
        """What the scheduler says of a whole group: its condition PodGroupScheduled, empty if there is none yet."""
        listed = (found for found in self.groups() if found["metadata"]["name"] == group)
        conditions = [found for one in listed for found in one.get("status", {}).get("conditions", ())]
        return next((found for found in conditions if found["type"] == "PodGroupScheduled"), {})

    def until_judged(self, group: str) -> Manifest:
        """The condition of a group as soon as the scheduler has looked for a place for it."""
        return eventually(lambda: self.verdict(group), bool, f"{group} is judged", self.patience_seconds)

    def until_refused(self, group: str) -> Manifest:
        """The condition of a group as soon as the scheduler has found no place for it."""
        return eventually(
            lambda: self.verdict(group),
            lambda found: found.get("status") == "False",
            f"no place for {group}",
            self.patience_seconds,
        )

    def pods_of(self, job: str) -> list[Manifest]:
        """A job's pods, by name."""
        query = f"labelSelector={names.LABEL_JOB}%3D{job}"
        found = json.loads(self.plane.client.get(f"/api/v1/namespaces/{self.namespace}/pods?{query}"))["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def nodes(self, job: str) -> list[str]:
        """Nodes of a job's pods that have not ended, by the pods' names; pods without a node are left out."""
        return [pod["spec"]["nodeName"] for pod in self.pods_of(job) if _is_bound(pod)]

    def until_one_runs(self, jobs: Iterable[str]) -> str:
        """The first of the jobs that has a pod on a node, once all its pods run."""
        jobs = list(jobs)
        placed = eventually(
            lambda: [job for job in jobs if self.nodes(job)], bool, f"one of {jobs} has a place", self.patience_seconds
        )
        self.until_running(placed[0])
        return placed[0]

    def until_running(self, job: str, holds: Callable[[Manifest], object] = bool) -> Manifest:
        """The status of a job as soon as all ranks of an attempt run."""

        def runs(status: Manifest) -> bool:
            ranks = status.get("ranks", {})
            return bool("attemptStartTime" in status and ranks.get("running") == ranks.get("desired") and holds(status))

        return self.until(runs, f"all ranks of {job} run", job)

    def end(self, job: str, code: int = 0) -> None:
        """End all running pods of a job."""
        for pod in self.pods_of(job):
            if pod["status"].get("phase") == "Running":
                self.exit(pod["metadata"]["name"], code)

    def exit(self, pod: str, code: int) -> None:
        """End a pod's container."""
        self.patch("pods", pod, {"metadata": {"annotations": {"exit-code": str(code)}}})

    def complete(self, job: str) -> None:
        """End all pods of a job well, and wait until it is complete."""
        self.end(job)
        self.until_phase("Complete", job)


def _is_bound(pod: Manifest) -> bool:
    return "nodeName" in pod["spec"] and pod["status"].get("phase") in ("Pending", "Running")
