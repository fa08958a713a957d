"""Gangs of higher priority on a real gang scheduler: whom they push out, how those come back, and whom they cannot."""

from collections.abc import Iterator

import pytest

from beds.cluster import ControlPlane
from beds.cluster.gangfixtures import DeviceNodes
from beds.operator.gangs import RACK, Gangs, device_job, in_rack
from beds.operator.namespace import condition

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("priorities")]

SIZE = 4
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def priorities(gang_cluster: ControlPlane) -> Iterator[None]:
    """Two classes, low and high."""
    for name, value in (("low", 1), ("high", 100)):
        gang_cluster.client.send("POST", _CLASSES, {"metadata": {"name": name}, "value": value})
    yield
    for name in ("low", "high"):
        gang_cluster.client.send("DELETE", f"{_CLASSES}/{name}")


@pytest.mark.parametrize("devices", [SIZE, SIZE + 2])
def test_a_whole_gang_makes_room_for_one_of_higher_priority_and_comes_back_by_itself(
    gangs: Gangs, device_nodes: DeviceNodes, devices: int
) -> None:
    device_nodes.add(devices)
    gangs.create(device_job("low", priorityClassName="low"))
    gangs.until_running("low")
    gangs.create(device_job("high", priorityClassName="high"))
    gangs.until_running("high")
    gangs.until_refused("low-base-1")
    assert gangs.nodes("low") == [], "no part of a gang keeps its devices"
    gangs.complete("high")
    status = gangs.until_running("low", lambda status: status["attempt"] == 1)
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)
    (attempt,) = status["attempts"]
    assert attempt["reason"] == "Disrupted"
    assert "PreemptionByScheduler" in attempt["message"]
    assert "preempting to accommodate a higher priority podgroup" in attempt["message"]
    gangs.complete("low")


def test_a_job_that_may_not_restart_survives_a_preemption(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE)
    patient = device_job("low", priorityClassName="low")
    patient["spec"]["failurePolicy"]["maxRestarts"] = 0
    gangs.create(patient)
    gangs.until_running("low")
    gangs.create(device_job("high", priorityClassName="high"))
    gangs.until_running("high")
    gangs.complete("high")
    gangs.until_running("low", lambda status: status["attempt"] == 1)


def test_a_gang_of_the_same_priority_waits(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE)
    gangs.create(device_job("first", priorityClassName="high"))
    gangs.until_running("first")
    gangs.create(device_job("second", priorityClassName="high"))
    gangs.until_refused("second-base-0")
    assert gangs.status("first")["restarts"] == 0
    gangs.complete("first")
    gangs.until_running("second")


def test_a_gang_with_a_topology_key_preempts_nobody_and_says_so(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE, labels={RACK: "only"})
    gangs.create(device_job("low", priorityClassName="low"))
    gangs.until_running("low")
    gangs.create(device_job("high", priorityClassName="high", schedulingConstraints=in_rack()))
    # Words of kube-scheduler 1.36: a limit of its own, in schedule_one_podgroup.go.
    words = "workload aware preemption is not supported for pod groups with scheduling constraints"
    gangs.until(lambda status: words in condition(status, "Running").get("message", ""), "it says why", "high")
    assert (gangs.status("low")["restarts"], len(gangs.nodes("low"))) == (0, SIZE)
    gangs.complete("low")
    gangs.until_running("high")
