"""The headless service of the coordinator."""

from typing import Any

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.metadata import labels, metadata

Manifest = dict[str, Any]


def service(job: Job, stage: Stage, attempt: int) -> Manifest:
    """The service that gives the attempt's coordinator a DNS name.

    It selects index 0 alone: endpoints for every rank cost seconds at 1000 pods. Name and selector carry the attempt,
    because a terminating pod keeps its endpoint and would hand out the dead coordinator's address.
    """
    port = {"name": "coordinator", "port": names.PORT_COORDINATOR, "targetPort": names.PORT_COORDINATOR}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, stage, attempt, names.gang(job.name, stage.name, attempt)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks meet before any of them is ready
            "selector": {**labels(job, stage, attempt), names.LABEL_INDEX: "0"},
            "ports": [port],
        },
    }
