"""Gangs of our operator on a real gang scheduler: whole or not at all, and within the label they ask for."""

import pytest

from beds.cluster.gangfixtures import DeviceNodes
from beds.operator.gangs import RACK, Gangs, device_job, in_rack
from beds.operator.wait import eventually

pytestmark = pytest.mark.long

SIZE = 4
ROUNDS = 20


def test_of_two_gangs_on_devices_for_one_and_a_half_one_runs_and_the_other_follows(
    gangs: Gangs, device_nodes: DeviceNodes
) -> None:
    device_nodes.add(6)
    for turn in range(ROUNDS):
        jobs = (f"a-{turn}", f"b-{turn}")
        for job in jobs:
            gangs.create(device_job(job))
        first = gangs.until_one_runs(jobs)
        second = jobs[1 - jobs.index(first)]
        gangs.until_refused(f"{second}-base-0")
        assert len(gangs.nodes(first)) == SIZE
        assert gangs.nodes(second) == []
        gangs.complete(first)
        gangs.until_running(second)
        gangs.complete(second)


def test_a_gang_is_placed_whole_within_the_only_rack_that_has_room(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(2, labels={RACK: "small"})
    large = device_nodes.add(4, labels={RACK: "large"})
    for turn in range(ROUNDS):
        job = f"a-{turn}"
        gangs.create(device_job(job, schedulingConstraints=in_rack()))
        gangs.until_running(job)
        assert sorted(gangs.nodes(job)) == sorted(large)
        gangs.complete(job)


def test_a_gang_waits_whole_while_no_rack_has_room_for_all(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(3, labels={RACK: "one"})
    other = device_nodes.add(3, labels={RACK: "other"})
    gangs.create(device_job("a", schedulingConstraints=in_rack()))
    gangs.until_refused("a-base-0")
    assert gangs.nodes("a") == []
    other += device_nodes.add(1, labels={RACK: "other"})
    gangs.until_running("a")
    assert sorted(gangs.nodes("a")) == sorted(other)


def test_a_restart_takes_a_new_group_and_removes_the_old_one(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE)
    gangs.create(device_job("a"))
    gangs.until_running("a")
    assert gangs.group_names() == ["a-base-0"]
    gangs.exit("a-base-0-2", 1)
    gangs.until_running("a", lambda status: status["attempt"] == 1)
    eventually(gangs.group_names, lambda names: names == ["a-base-1"], "only the new attempt's group is there")
    gangs.complete("a")
    eventually(gangs.group_names, lambda names: not names, "no group outlives its pods")
