"""The secret with the token of a job's launchers."""

from collections.abc import Mapping
from typing import Any

from resnetboost_api import names
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.metadata import owner

Manifest = dict[str, Any]


def launcher_secret(job: Job) -> Manifest:
    """The secret without its token, which whoever creates it fills in: no plan contains one.

    It serves all attempts, as long as the operator's key is the same. Immutable: launchers read it once.
    """
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_JOB: job.name,
        names.LABEL_JOB_UID: job.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.launcher_secret(job.name, job.uid, job.launcher_key),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner(job)],
        },
        "immutable": True,
        "type": "Opaque",
    }


def with_token(secret: Mapping[str, Any], token: bytes) -> Manifest:
    """The secret with its token. The API server encodes `stringData` itself."""
    return {**secret, "stringData": {names.LAUNCHER_KEY: token.decode()}}
