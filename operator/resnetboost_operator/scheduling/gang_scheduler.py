"""The interface of a gang scheduler: one file per scheduler implements it, the registry lists them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.metadata import metadata
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.observed.podgroup import PodGroupView

Manifest = dict[str, Any]

SILENCE = "correct scheduling.schedulerName or start that scheduler"


class GangScheduler(NamedTuple):
    """How to have a gang scheduled as one.

    `api`: group/version of its PodGroups, '' if it has none. `scheduler_names`: values of `schedulerName` that mean
    it; '' is the default scheduler.
    `pod_group(job, stage, attempt)`: manifest of an attempt's group, with labels and owner of `manifests.metadata`,
    named like the gang; None where the scheduler needs no object.
    `placed(placement, job, stage, attempt)`: the placement with what makes a pod a member. It clears `topology_key` if
    the group surely carries the constraint; else the pods get an affinity.
    `why(group)`: (reason, message) of a group that is not scheduled, in the scheduler's words; None if it reports none.
    `install`: what an administrator does to get this scheduler, for a message. `silence`: what to do where it does not
    look at the pods.
    """

    name: str
    api: str
    scheduler_names: tuple[str, ...]
    pod_group: Callable[[Job, Stage, int], Manifest] | None
    placed: Callable[[Placement, Job, Stage, int], Placement]
    why: Callable[[PodGroupView], tuple[str, str] | None]
    install: str
    silence: str = SILENCE


def pod_group(api: str, job: Job, stage: Stage, attempt: int, spec: Manifest) -> Manifest:
    """The manifest of an attempt's PodGroup in that API: named, labelled and owned like the gang's other objects."""
    name = names.gang(job.name, stage.name, attempt)
    return {"apiVersion": api, "kind": "PodGroup", "metadata": metadata(job, stage, attempt, name), "spec": spec}


def topology_key(job: Job) -> str:
    """The one node label that the job's gang shares, '' without."""
    constraints = job.spec.scheduling.scheduling_constraints.topology
    return constraints[0].key if constraints else ""


def base_placement(job: Job) -> Placement:
    """What the job itself says about its pods' scheduling."""
    wanted = job.spec.scheduling
    return replace(
        Placement(),
        scheduler_name=wanted.scheduler_name or "",
        priority_class_name=wanted.priority_class_name or "",
        annotations=job.pod_annotations,
        topology_key=topology_key(job),
    )
