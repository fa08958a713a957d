"""Gangs of the plugin Coscheduling (scheduler-plugins): PodGroups of scheduling.x-k8s.io.

Its scheduler has any name that an administrator gave it. Its groups have a phase and no conditions: what keeps a gang
waiting is said in the conditions of its pods.
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
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler, pod_group

Manifest = dict[str, Any]

LABEL_GROUP = "scheduling.x-k8s.io/pod-group"


def _pod_group(job: Job, stage: Stage, attempt: int) -> Manifest:
    spec: Manifest = {"minMember": stage.device_count}
    if requests := min_resources.of_gang(job, stage):
        spec["minResources"] = requests
    return pod_group(capabilities.COSCHEDULING, job, stage, attempt, spec)


def _placed(placement: Placement, job: Job, stage: Stage, attempt: int) -> Placement:
    return replace(placement, labels={**placement.labels, LABEL_GROUP: names.gang(job.name, stage.name, attempt)})


def _why(group: PodGroupView) -> None:
    return None


COSCHEDULING = GangScheduler(
    name="coscheduling",
    api=capabilities.COSCHEDULING,
    scheduler_names=("scheduler-plugins-scheduler",),  # of the plugins' own chart
    pod_group=_pod_group,
    placed=_placed,
    why=_why,
    install="install scheduler-plugins with the plugin Coscheduling",
)
