"""What all objects of a job have in common: name, labels, owner."""

from typing import Any

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job

Manifest = dict[str, Any]


def metadata(job: Job, stage: Stage, attempt: int, name: str) -> Manifest:
    """Metadata with name, labels and owner: deleting the job deletes its objects, also while the operator is down."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": labels(job, stage, attempt),
        "ownerReferences": [owner(job)],
    }


def owner(job: Job) -> Manifest:
    """The reference to the job by which all its objects are deleted with it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,  # without blockOwnerDeletion, which asks for a right on the job's finalizers
    }


def labels(job: Job, stage: Stage, attempt: int) -> dict[str, str]:
    """The labels that select the objects of an attempt."""
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_JOB: job.name,
        names.LABEL_JOB_UID: job.uid,
        names.LABEL_STAGE: stage.name,
        names.LABEL_ATTEMPT: str(attempt),
    }
