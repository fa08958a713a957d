"""The headless service of index 0: of the coordinator and of the leader's launcher."""

from typing import Any

from resnetboost_api import names
from resnetboost_api.stage import Stage
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.metadata import labels, metadata

Manifest = dict[str, Any]


def service(job: Job, stage: Stage, attempt: int) -> Manifest:
    """The service that gives the attempt's coordinator, and the launcher of its leader, a DNS name.

    It selects index 0 alone: endpoints for every rank cost seconds at 1000 pods. Name and selector carry the attempt,
    because a terminating pod keeps its endpoint and would hand out the dead coordinator's address.
    """
    ports = [_port("coordinator", names.PORT_COORDINATOR)]
    if devices.needs_rank_table(job.spec.device, stage):
        ports = []
    if job.has_launchers:
        ports.append(_port("launcher", names.PORT_LAUNCHER))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, stage, attempt, names.gang(job.name, stage.name, attempt)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks meet before any of them is ready
            "selector": {**labels(job, stage, attempt), names.LABEL_INDEX: "0"},
            "ports": ports,
        },
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": number}
