"""The pod of a rank: security context, placement, and what it shares with all pods of the job."""

from collections.abc import Mapping
from typing import Any

from resnetboost_api import names
from resnetboost_api.device import Device
from resnetboost_api.stage import Stage
from resnetboost_api.writing import without_nulls
from resnetboost_operator.job import Job
from resnetboost_operator.manifests import devices
from resnetboost_operator.manifests.container import container
from resnetboost_operator.manifests.metadata import metadata
from resnetboost_operator.manifests.placement import PLAIN, Placement
from resnetboost_operator.manifests.volumes import volumes

Manifest = dict[str, Any]

# Seconds that a rank has to save a checkpoint between SIGTERM and SIGKILL.
TERMINATION_GRACE_SECONDS = 60
# The group that may write the checkpoint volume, whoever the image's user is. On Ascend hosts it is HwHiAiUser's, whose
# devices nobody else may open.
GROUP_ID = 1000
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(job: Job, stage: Stage, attempt: int, index: int, placement: Placement = PLAIN) -> Manifest:
    """The pod of one rank. It gets no API token, because the trainer makes no requests to the API server."""
    device = job.spec.device
    node_group = str(index // device.per_node) if device.per_node is not None else ""
    found = metadata(job, stage, attempt, names.pod(job.name, stage.name, attempt, index))
    found["labels"] |= {names.LABEL_INDEX: str(index), **placement.labels}
    if node_group:
        found["labels"][names.LABEL_NODE_GROUP] = node_group
    if placement.annotations:
        found["annotations"] = dict(placement.annotations)
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
    affinity = {**_near_and_far(job, attempt, index, placement.topology_key), **_away(index, placement)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": found,
        "spec": {**spec, **scheduling(job, index, placement), **({"affinity": affinity} if affinity else {})},
    }


def scheduling(job: Job, index: int = 0, placement: Placement = PLAIN) -> Manifest:
    """The fields of the spec that say where the pod may run and who decides; those without a value are left out."""
    template, device = job.spec.template, job.spec.device
    fields: Manifest = {
        "nodeSelector": {
            **template.node_selector,
            **placement.node_selector,
            **placement.node_selector_of.get(index, {}),
        },
        "tolerations": [
            *without_nulls(template.tolerations),
            *_device_tolerations(device),
            *map(dict, placement.tolerations),
        ],
        "runtimeClassName": device.runtime_class_name,
        "schedulerName": placement.scheduler_name,
        "priorityClassName": placement.priority_class_name,
        "schedulingGroup": {"podGroupName": placement.pod_group} if placement.pod_group else None,
    }
    return {name: value for name, value in fields.items() if value}


def _device_tolerations(device: Device) -> list[Manifest]:
    """Tolerate the taint named like the device's resource, which often reserves nodes with devices."""
    resource = devices.resource_name(device)
    return [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}] if resource is not None else []


def _away(index: int, placement: Placement) -> Manifest:
    """The node affinity that keeps the pod away from excluded nodes; nothing without any.

    Kubernetes takes one name for each field selector. Where a queue has chosen the pod's very node (Kueue's topology
    assignment), only the queue can choose another.
    """
    if not placement.excluded_nodes or names.NODE_TOPOLOGY in placement.node_selector_of.get(index, {}):
        return {}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in placement.excluded_nodes]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": fields}]}}}


def _near_and_far(job: Job, attempt: int, index: int, topology_key: str) -> Manifest:
    """Place one whole group of the attempt's pods on each node, and no other pod of it; all of them where the nodes
    have the same value of the label `topology_key`, if it is not ''. Returns parts of the affinity.

    So the ranks of a node are consecutive without being assigned after binding.
    """
    per_node = job.spec.device.per_node
    mine = {names.LABEL_JOB_UID: job.uid, names.LABEL_ATTEMPT: str(attempt)}
    near, far = [], []
    if per_node is not None:
        group = str(index // per_node)
        far.append(
            _term(names.NODE_TOPOLOGY, mine, {"key": names.LABEL_NODE_GROUP, "operator": "NotIn", "values": [group]})
        )
    leader = index - index % (per_node or 1)
    if topology_key and index == leader:
        near.append(_term(topology_key, mine))
    elif topology_key:
        # Kubernetes counts only pods that match all terms, so two terms would leave each group a rack of its own. The
        # first pod of a group looks for the rack, and the others can only follow it.
        near.append(_term(names.NODE_TOPOLOGY, {**mine, names.LABEL_INDEX: str(leader)}))
    elif per_node is not None:
        near.append(_term(names.NODE_TOPOLOGY, {**mine, names.LABEL_NODE_GROUP: group}))
    terms = {"podAffinity": near, "podAntiAffinity": far}
    return {kind: {REQUIRED: terms[kind]} for kind in terms if terms[kind]}


def _term(topology_key: str, labels: Mapping[str, str], *expressions: Manifest) -> Manifest:
    """A term of an affinity to pods with the labels, within nodes of one value of `topology_key`."""
    selector: Manifest = {"matchLabels": dict(labels)}
    if expressions:
        selector["matchExpressions"] = list(expressions)
    return {"labelSelector": selector, "topologyKey": topology_key}
