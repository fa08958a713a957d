"""Elastic gangs on a real gang scheduler: whole or not at all, with a group for each size."""

import pytest

from beds.cluster.gangfixtures import DeviceNodes
from beds.operator.gangs import Gangs, device_job
from beds.operator.jobs import CLAIM

pytestmark = pytest.mark.long

SIZE = 4


def test_a_gang_shrinks_to_the_devices_there_are_and_grows_with_them(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE // 2)
    gangs.add_claim(CLAIM)
    job = device_job("a", SIZE)
    job["spec"]["device"] |= {"minCount": 2, "elasticAfterSeconds": 5, "resizeBackoffSeconds": 5}
    job["spec"]["checkpoint"] = {"claimName": CLAIM}
    gangs.create(job)
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
