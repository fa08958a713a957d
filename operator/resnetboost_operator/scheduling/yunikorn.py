"""Gangs of YuniKorn: no object, but labels and annotations of the pods.

YuniKorn reserves room for a gang by placeholder pods (tg-...) and then replaces them with the pods. Placeholders have
the nodes and tolerations of the pods, not their affinity: with `perNode` or a topology key a pod may find no room where
its placeholder was, and YuniKorn then looks for other nodes.
"""

import json
from typing import Any

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import pod
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.observed.podgroup import PodGroupView
from resnetboost_operator.scheduling import min_resources
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler

Manifest = dict[str, Any]

LABEL_APPLICATION = "applicationId"
ANNOTATION_GROUP = "yunikorn.apache.org/task-group-name"
ANNOTATION_GROUPS = "yunikorn.apache.org/task-groups"
ANNOTATION_PARAMETERS = "yunikorn.apache.org/schedulingPolicyParameters"


def _placed(placement: Placement, job: Job, stage: Stage, attempt: int) -> Placement:
    """The application is one attempt, under a name that no other namespace or attempt has."""
    labels = {**placement.labels, LABEL_APPLICATION: f"{job.uid}-{attempt}"}
    if job.yunikorn_queue:
        labels[names.YUNIKORN_QUEUE] = job.yunikorn_queue
    name = names.gang(job.name, stage.name, attempt)
    group = _task_group(name, placement, job, stage)
    annotations = {
        **placement.annotations,
        ANNOTATION_GROUP: name,
        ANNOTATION_GROUPS: json.dumps([group]),
        ANNOTATION_PARAMETERS: _parameters(job),
    }
    return replace(placement, labels=labels, annotations=annotations)


def _task_group(name: str, placement: Placement, job: Job, stage: Stage) -> Manifest:
    places = pod.scheduling(job, placement=placement)
    group = {
        "name": name,
        "minMember": stage.device_count,
        "minResource": min_resources.of_pod(job),
        "nodeSelector": places.get("nodeSelector"),
        "tolerations": places.get("tolerations"),
    }
    return {field: value for field, value in group.items() if value}


def _parameters(job: Job) -> str:
    """All or none: by default YuniKorn schedules the pods one by one once it has waited for long. The start-up deadline
    ends the attempt by then.
    """
    deadline = job.spec.run_policy.startup_deadline_seconds
    return f"gangSchedulingStyle=Hard placeholderTimeoutInSeconds={deadline}"


def _why(group: PodGroupView) -> None:
    return None


YUNIKORN = GangScheduler(
    name="YuniKorn",
    api="",
    scheduler_names=("yunikorn",),
    pod_group=None,
    placed=_placed,
    why=_why,
    install="install YuniKorn",
    silence="correct scheduling.schedulerName, start that scheduler, or make room for its placeholders (pods tg-...)",
)
