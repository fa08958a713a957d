"""Excluded nodes on a real scheduler: the next attempt avoids them, and goes back where it finds no others."""

import pytest

from beds.cluster.gangfixtures import DeviceNodes
from beds.operator.gangs import Gangs, device_job

pytestmark = pytest.mark.long

SIZE = 4
RULES = [{"name": "lost-gpu", "onExitCodes": [79], "action": "ExcludeNode"}]


def test_the_next_attempt_avoids_the_node_of_the_failed_rank(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE + 1)
    create(gangs)
    bad = gangs.nodes("a")[2]
    gangs.exit("a-base-0-2", 79)
    status = gangs.until_running("a", lambda status: status["attempt"] == 1)
    assert [found["node"] for found in status["excludedNodes"]] == [bad]
    assert status["attempts"][0]["rule"] == "lost-gpu"
    assert len(gangs.nodes("a")) == SIZE
    assert bad not in gangs.nodes("a")
    gangs.complete("a")


def test_a_gang_that_finds_no_other_node_gets_the_excluded_one_back(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    gangs.patience_seconds = 240  # the exclusion is lifted after two minutes
    device_nodes.add(SIZE)
    create(gangs)
    places = sorted(gangs.nodes("a"))
    gangs.exit("a-base-0-2", 79)
    status = gangs.until_running("a", lambda status: status["attempt"] == 2)
    assert "excludedNodes" not in status
    assert [found["reason"] for found in status["attempts"]] == ["InternalError", "NotScheduled"]
    assert status["restartsCountTowardsMax"] == 1
    assert sorted(gangs.nodes("a")) == places
    gangs.complete("a")


def create(gangs: Gangs) -> None:
    """A gang that trains."""
    job = device_job("a")
    job["spec"]["failurePolicy"] = {"rules": RULES, "backoffSeconds": 1}
    gangs.create(job)
    gangs.until_running("a")
