"""Gangs of Volcano: PodGroups of scheduling.volcano.sh.

The pods name their group by an annotation; without it Volcano makes a group of its own with one member. A topology key
is a tier name of Volcano's HyperNodes, which its label discovery names after the nodes' label.
"""

from typing import Any

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.observed import capabilities
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.scheduling import min_resources
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler, pod_group, topology_key

Manifest = dict[str, Any]

ANNOTATION_GROUP = "scheduling.k8s.io/group-name"
# Phases of a group that is not scheduled. The condition Unschedulable stays True in the others, too.
_WAITING = ("", "Pending", "Inqueue", "Unknown")


def _pod_group(job: Job, stage: Stage, attempt: int) -> Manifest:
    spec: Manifest = {"minMember": stage.device_count}
    if requests := min_resources.of_gang(job, stage):
        spec["minResources"] = requests
    if job.volcano_queue:
        spec["queue"] = job.volcano_queue
    if priority := job.spec.scheduling.priority_class_name:
        spec["priorityClassName"] = priority
    if key := topology_key(job):
        spec["networkTopology"] = {"mode": "hard", "highestTierName": key}
    return pod_group(capabilities.VOLCANO, job, stage, attempt, spec)


def _placed(placement: Placement, job: Job, stage: Stage, attempt: int) -> Placement:
    annotations = {**placement.annotations, ANNOTATION_GROUP: names.gang(job.name, stage.name, attempt)}
    return replace(placement, annotations=annotations, topology_key="")


def _why(group: PodGroupView) -> tuple[str, str] | None:
    """Of the two conditions Unschedulable and Scheduled, which both stay True, the later one counts."""
    found, scheduled = group.conditions.get("Unschedulable"), group.conditions.get("Scheduled")
    if found is None or found.status != "True" or group.phase not in _WAITING:
        return None
    if scheduled is not None and scheduled.status == "True" and scheduled.time > found.time:
        return None
    return found.reason, found.message


VOLCANO = GangScheduler(
    name="Volcano",
    api=capabilities.VOLCANO,
    scheduler_names=("volcano",),
    pod_group=_pod_group,
    placed=_placed,
    why=_why,
    install="install Volcano",
    silence="correct scheduling.schedulerName, start that scheduler, or create the job's queue if Volcano has none",
)
