"""Elastic gangs on a real gang scheduler: whole or not at all, with a group for each size."""

from typing import Any

import pytest

from beds.cluster.gangfixtures import DeviceNodes
from beds.operator.gangs import Gangs, device_job
from beds.operator.jobs import CLAIM

pytestmark = pytest.mark.long

SIZE = 4


def test_a_gang_shrinks_to_the_devices_there_are_and_grows_with_them(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE // 2)
    gangs.add_claim(CLAIM)
    gangs.create(elastic_job())
    status = gangs.until_running("a", lambda status: status["deviceCount"] == SIZE // 2)
    (group,) = gangs.groups()
    assert group["metadata"]["name"] == f"a-base-{status['attempt']}"
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == SIZE // 2
    assert status["placeableDevices"] == SIZE // 2
    device_nodes.add(SIZE // 2)
    status = gangs.until_running("a", lambda status: status["deviceCount"] == SIZE)
    assert [found["spec"]["schedulingPolicy"]["gang"]["minCount"] for found in gangs.groups()] == [SIZE]
    assert len(gangs.nodes("a")) == SIZE
    assert status["restartsCountTowardsMax"] == 0
    gangs.complete("a")


def test_a_drained_node_that_nothing_replaces_leaves_half_a_gang_until_it_returns(
    gangs: Gangs, device_nodes: DeviceNodes
) -> None:
    nodes = device_nodes.add(SIZE)
    gangs.add_claim(CLAIM)
    gangs.create(elastic_job())
    gangs.until_running("a")
    gangs.plane.kubectl("drain", nodes[1], "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
    status = gangs.until_running("a", lambda status: status["deviceCount"] == SIZE // 2)
    assert [(record["reason"], record["ranks"]) for record in status["attempts"]] == [
        ("Disrupted", SIZE),
        ("Resized", SIZE),
    ]
    gangs.plane.kubectl("uncordon", nodes[1])
    status = gangs.until_running("a", lambda status: status["deviceCount"] == SIZE)
    assert sorted(gangs.nodes("a")) == sorted(nodes)
    assert status["restartsCountTowardsMax"] == 0
    gangs.complete("a")


def elastic_job() -> dict[str, Any]:
    """A job that goes on with half of its devices after five seconds, and looks for more after five."""
    job = device_job("a", SIZE)
    job["spec"]["device"] |= {"minCount": 2, "elasticAfterSeconds": 5, "resizeBackoffSeconds": 5}
    job["spec"]["checkpoint"] = {"claimName": CLAIM}
    return job
