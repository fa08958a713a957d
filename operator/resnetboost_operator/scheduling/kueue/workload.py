"""The Workload of a job: all its ranks as one pod set, for which Kueue reserves quota."""

import hashlib
from typing import Any, NamedTuple

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator import sizes
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import container, pod
from resnetboost_operator.manifests.metadata import owner
from resnetboost_operator.observed.capabilities import KUEUE
from resnetboost_operator.scheduling.gang_scheduler import topology_key
from resnetboost_operator.scheduling.kueue import keys

Manifest = dict[str, Any]

POD_SET = "ranks"


class PriorityClass(NamedTuple):
    """The class whose value is the Workload's priority."""

    group: str
    kind: str
    name: str


def name(job: Job) -> str:
    """Name of the job's Workload. A later job of the same name gets another."""
    return name_of(job.name, job.uid)


def name_of(job_name: str, job_uid: str) -> str:
    """Name of the Workload of the job with that name and uid."""
    return f"{names.SINGULAR}-{job_name}-{hashlib.sha256(job_uid.encode()).hexdigest()[:10]}"


def priority_class(job: Job) -> PriorityClass | None:
    """The WorkloadPriorityClass of the job's label, else the PriorityClass of its pods, as Kueue does for its jobs."""
    if job.queue_priority:
        return PriorityClass("kueue.x-k8s.io", "WorkloadPriorityClass", job.queue_priority)
    if job.spec.scheduling.priority_class_name:
        return PriorityClass("scheduling.k8s.io", "PriorityClass", job.spec.scheduling.priority_class_name)
    return None


def count(job: Job, stage: Stage) -> int:
    """Pods that the job needs at once from this stage on: those of the largest stage that is left."""
    stages = job.spec.stages
    return max(found.device_count for found in stages[stages.index(stage) :])


def manifest(job: Job, stage: Stage, priority: int | None) -> Manifest:
    """The Workload of a job that goes on with this stage. `priority` is the value of its priority class."""
    spec: Manifest = {"queueName": job.queue, "podSets": [_pod_set(job, stage)]}
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {
            "name": name(job),
            "namespace": job.namespace,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_JOB: job.name,
                names.LABEL_JOB_UID: job.uid,
                keys.LABEL_JOB_UID: job.uid,
            },
            "ownerReferences": [owner(job)],
        },
        "spec": {**spec, **priority_fields(job, priority)},
    }


def priority_fields(job: Job, priority: int | None) -> Manifest:
    """The fields of the spec with the job's priority; none without a class. Kueue takes both or neither."""
    found = priority_class(job)
    if found is None or priority is None:
        return {}
    return {"priorityClassRef": found._asdict(), "priority": priority}


def _pod_set(job: Job, stage: Stage) -> Manifest:
    """The ranks. Of their template only what decides about quota and flavor."""
    trainer: Manifest = {"name": names.CONTAINER}
    if resources := container.resources(job):
        trainer["resources"] = resources
    template = {"spec": {"containers": [trainer], **pod.scheduling(job)}}
    found: Manifest = {"name": POD_SET, "count": count(job, stage), "template": template}
    least = _least(job, stage)
    if least is not None and least < found["count"]:
        found["minCount"] = least
    if request := topology_request(job):
        found["topologyRequest"] = request
    return found


def _least(job: Job, stage: Stage) -> int | None:
    """The fewest pods that the job can go on with, None if it needs all. Kueue takes no minCount with a topology."""
    least = job.spec.device.min_count
    if least is None or topology_key(job):
        return None
    stages = job.spec.stages[job.spec.stages.index(stage) :]
    return max(
        min(number for number in sizes.sizes(job, found) if number >= min(least, found.device_count))
        for found in stages
    )


def topology_request(job: Job) -> Manifest:
    """The request for topology-aware scheduling; empty without a topology constraint."""
    if not (key := topology_key(job)):
        return {}
    request: Manifest = {"required": key, "podIndexLabel": names.LABEL_INDEX}
    if job.spec.device.per_node is not None:
        request |= {"podSetSliceRequiredTopology": names.NODE_TOPOLOGY, "podSetSliceSize": job.spec.device.per_node}
    return request
