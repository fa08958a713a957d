"""An operator that taints nodes which fail, under the rights of the chart's files/rbac-taints.yaml."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.cluster.gangfixtures import DeviceNodes
from beds.operator import Account, Operator
from beds.operator.gangs import Gangs, device_job
from beds.operator.service_account import TAINT_RULES
from beds.operator.wait import eventually
from resnetboost_api import names

pytestmark = pytest.mark.long

TAINT = {"key": names.TAINT_FAILING, "value": "true", "effect": "PreferNoSchedule"}
FOREIGN = {"key": "example.com/reserved", "value": "", "effect": "PreferNoSchedule"}


@pytest.fixture(scope="module")
def gang_operator(gang_cluster: ControlPlane, gang_account: Account) -> Iterator[Operator]:
    """One that schedules gangs and taints nodes."""
    gang_account.allow(TAINT_RULES)
    options = ["--gang-scheduling", "--taint-nodes=PreferNoSchedule"]
    operator = Operator(gang_cluster, gang_account.kubeconfig, "tainting-operator", options=options)
    operator.start()
    yield operator
    assert operator.terminate() == 0, "the operator did not end well"
    gang_account.deny(TAINT_RULES)


def test_a_node_is_tainted_after_two_failures_and_freed_in_time(
    gangs: Gangs, device_nodes: DeviceNodes, gang_operator: Operator
) -> None:
    gangs.patience_seconds = 90  # the operator looks every 15 s
    (bad, *_) = device_nodes.add(2)
    path = f"/api/v1/nodes/{bad}"
    change(gangs, path, {"spec": {"taints": [FOREIGN]}})
    job = device_job("a", ranks=2)
    job["spec"]["failurePolicy"] = {"backoffSeconds": 1}
    gangs.create(job)
    for attempt in (0, 1):
        gangs.until_running("a", functools.partial(is_attempt, attempt))
        (pod,) = (found for found in gangs.pods_of("a") if found["spec"].get("nodeName") == bad)
        gangs.exit(pod["metadata"]["name"], 1)
    eventually(lambda: taints(gangs, path), lambda found: TAINT in found, "the node is tainted", 90)
    assert FOREIGN in taints(gangs, path)
    gang_operator.kill()
    gangs.delete("resnetboostjobs", "a")
    change(gangs, path, {"metadata": {"annotations": {names.ANNOTATION_FAILING_UNTIL: "2026-01-01T00:00:00Z"}}})
    gang_operator.start()
    eventually(lambda: taints(gangs, path), lambda found: found == [FOREIGN], "only its own taint is gone", 90)
    assert names.ANNOTATION_FAILING_UNTIL not in read(gangs, path)["metadata"].get("annotations", {})


def is_attempt(number: int, status: dict[str, Any]) -> bool:
    return bool(status["attempt"] == number)


def read(gangs: Gangs, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gangs.plane.client.get(path))
    return found


def taints(gangs: Gangs, path: str) -> list[dict[str, str]]:
    """The taints of the node, without those of Kubernetes."""
    found = read(gangs, path)["spec"].get("taints", [])
    return [{"value": "", **taint} for taint in found if not taint["key"].startswith("node.kubernetes.io/")]


def change(gangs: Gangs, path: str, body: dict[str, Any]) -> None:
    gangs.plane.client.send("PATCH", path, body, "application/merge-patch+json")
