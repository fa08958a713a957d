"""All objects of one attempt."""

from collections.abc import Sequence
from typing import Any

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_api.status import RollBack
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.config_map import config_map
from resnetboost_operator.manifests.launcher_secret import launcher_secret
from resnetboost_operator.manifests.pod import pod
from resnetboost_operator.manifests.service import service

Manifest = dict[str, Any]


def gang(job: Job, stage: Stage, attempt: int) -> tuple[Manifest, ...]:
    """All objects of an attempt except its rank table, in the order of creation."""
    return shared(job, stage, attempt) + tuple(pod(job, stage, attempt, index) for index in range(stage.device_count))


def shared(job: Job, stage: Stage, attempt: int, roll_backs: Sequence[RollBack] = ()) -> tuple[Manifest, ...]:
    """The objects that the pods of an attempt refer to, to be created before them."""
    built = [launcher_secret(job)] if job.has_launchers else []
    built.append(config_map(job, stage, attempt, roll_backs))
    by_table = devices.needs_rank_table(job.spec.device, stage)
    if stage.device_count > 1 and (job.has_launchers or not by_table):
        built.append(service(job, stage, attempt))
    return tuple(built)


def obsolete_selector(job: Job, attempt: int) -> str:
    """Label selector of the shared objects of earlier attempts; '' if there are none."""
    return f"{names.LABEL_JOB_UID}={job.uid},{names.LABEL_ATTEMPT}!={attempt}" if attempt > 0 else ""
