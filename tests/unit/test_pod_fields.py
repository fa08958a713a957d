"""Decoding only some of a pod's fields gives the view that all of them give."""

import json
from typing import Any

import pytest

from beds.operator import podstatus
from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.manifests.pod import pod as pod_manifest
from resnetboost_operator.observed import podfields, pods
from resnetboost_operator.ranktable.annotations import KEYS
from support.simulation import job

JOB = job(device={"type": "CPU", "count": 3})
PLACED = Placement(excluded_nodes=("node-a", "node-b"), annotations={KEYS[0]: "{}", "other": "x"})
POD = pod_manifest(JOB, JOB.spec.stages[0], 2, 1, PLACED)
METADATA = {"uid": "u-7", "resourceVersion": "12", "creationTimestamp": "2026-11-21T10:00:00Z", "managedFields": [{}]}
GATED = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
BOUND = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T10:00:03Z"}


def stored(status: dict[str, Any], spec: dict[str, Any] = {}, **metadata: Any) -> dict[str, Any]:  # noqa: B006
    """The pod as the API server stores it."""
    return {
        **POD,
        "metadata": {**POD["metadata"], **METADATA, **metadata},
        "spec": {**POD["spec"], **spec},
        "status": status,
    }


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(stored({"phase": "Pending"}), id="new"),
        pytest.param(stored({"phase": "Pending", "conditions": [UNSCHEDULED]}, GATED), id="gated"),
        pytest.param(stored({**podstatus.running("10.0.0.1"), "conditions": [BOUND]}, {"nodeName": "n"}), id="running"),
        pytest.param(stored(podstatus.ended(3, "Error", '{"class": "Bug", "step": 7}')), id="ended"),
        pytest.param(stored(podstatus.waiting("ErrImagePull", "no such image")), id="waiting"),
        pytest.param(stored(podstatus.disrupted("PreemptionByScheduler")), id="disrupted"),
        pytest.param(stored({"phase": "Failed", "reason": "Evicted", "message": "disk"}), id="evicted"),
        pytest.param(stored({"phase": "Running"}, deletionTimestamp="2026-11-21T10:00:00Z"), id="deleting"),
        pytest.param(stored({"conditions": None, "containerStatuses": None}, {"affinity": None}), id="nulls"),
    ],
)
def test_the_view_is_that_of_the_whole_pod(pod: dict[str, Any]) -> None:
    decoded = podfields.decode(json.dumps(pod).encode())
    assert pods.view(decoded) == pods.view(pod)
    assert "managedFields" not in decoded["metadata"]


def test_a_field_of_another_type_is_decoded_too() -> None:
    pod = stored({"phase": "Running"}, labels={"index": 7})
    assert podfields.decode(json.dumps(pod).encode()) == pod
