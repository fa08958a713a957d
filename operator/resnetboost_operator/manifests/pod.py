"""The pod of a rank: security context, placement, and what it shares with all pods of the job."""

from typing import Any

from resnetboost_api import names
from resnetboost_api.device import Device
from resnetboost_api.stage import Stage
from resnetboost_api.writing import without_nulls
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.container import container
from resnetboost_operator.manifests.metadata import metadata
from resnetboost_operator.manifests.volumes import volumes

Manifest = dict[str, Any]

# Seconds that a rank has to save a checkpoint between SIGTERM and SIGKILL.
TERMINATION_GRACE_SECONDS = 60
# The group that may write the checkpoint volume, whoever the image's user is. On Ascend hosts it is HwHiAiUser's, whose
# devices nobody else may open.
GROUP_ID = 1000


def pod(job: Job, stage: Stage, attempt: int, index: int) -> Manifest:
    """The pod of one rank. It gets no API token, because the trainer makes no requests to the API server."""
    template, device = job.spec.template, job.spec.device
    found = metadata(job, stage, attempt, names.pod(job.name, stage.name, attempt, index))
    found["labels"][names.LABEL_INDEX] = str(index)
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": GROUP_ID,
            "fsGroupChangePolicy": "OnRootMismatch",  # a volume full of checkpoints takes long to go through
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(job, stage, attempt, index)],
        "volumes": volumes(job, stage, attempt, index),
    }
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector)
    if tolerations := [*without_nulls(template.tolerations), *_device_tolerations(device)]:
        spec["tolerations"] = tolerations
    if device.runtime_class_name is not None:
        spec["runtimeClassName"] = device.runtime_class_name
    if device.per_node is not None:
        node_group = str(index // device.per_node)
        found["labels"][names.LABEL_NODE_GROUP] = node_group
        spec["affinity"] = _affinity(job, attempt, node_group)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found, "spec": spec}


def _device_tolerations(device: Device) -> list[Manifest]:
    """Tolerate the taint named like the device's resource, which often reserves nodes with devices."""
    resource = devices.resource_name(device)
    return [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}] if resource is not None else []


def _affinity(job: Job, attempt: int, node_group: str) -> Manifest:
    """Place one whole group of the attempt's pods on each node, and no other pod of it.

    So the ranks of a node are consecutive without being assigned after binding.
    """
    mine = {names.LABEL_JOB_UID: job.uid, names.LABEL_ATTEMPT: str(attempt)}
    here = {"labelSelector": {"matchLabels": {**mine, names.LABEL_NODE_GROUP: node_group}}}
    others = [{"key": names.LABEL_NODE_GROUP, "operator": "NotIn", "values": [node_group]}]
    elsewhere = {"labelSelector": {"matchLabels": mine, "matchExpressions": others}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        "podAffinity": {required: [{**here, "topologyKey": names.NODE_TOPOLOGY}]},
        "podAntiAffinity": {required: [{**elsewhere, "topologyKey": names.NODE_TOPOLOGY}]},
    }
