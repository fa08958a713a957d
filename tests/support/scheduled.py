"""Workloads and PodGroups of a job as Kueue and gang schedulers have them, with the fields that the operator reads."""

from typing import Any

from resnetboost_api import names
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.metadata import metadata
from resnetboost_operator.observed.capabilities import KUEUE
from resnetboost_operator.scheduling.kueue import workload as workloads

Manifest = dict[str, Any]


def workload(job: Job, name: str = "", **status: Any) -> Manifest:
    """The Workload of a job, as large as its first stage; by default with the name that makes it the job's."""
    stage = job.spec.stages[0]
    template = {"spec": {"containers": [{"name": names.CONTAINER}]}}
    pod_set = {"name": "ranks", "count": stage.device_count, "template": template}
    found: Manifest = {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": metadata(job, stage, 0, name or workloads.name(job)),
        "spec": {"queueName": job.queue or "team-a", "podSets": [pod_set]},
    }
    return found | ({"status": status} if status else {})


def admission(*flavors: str) -> Manifest:
    """An admission to those flavors, each for a resource of its own."""
    given = {f"example.com/{name}": name for name in flavors}
    return {"clusterQueue": "all", "podSetAssignments": [{"name": "ranks", "flavors": given}]}


def pod_group(job: Job, api: str, attempt: int = 0) -> Manifest:
    """The PodGroup of an attempt."""
    stage = job.spec.stages[0]
    name = names.gang(job.name, stage.name, attempt)
    spec = {"minMember": stage.device_count}
    return {"apiVersion": api, "kind": "PodGroup", "metadata": metadata(job, stage, attempt, name), "spec": spec}
