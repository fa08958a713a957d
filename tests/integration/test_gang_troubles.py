"""Gangs that a real gang scheduler cannot place: the one condition that says why, and where users read it."""

import subprocess
import sys
from pathlib import Path

import pytest

from beds.cluster.gangfixtures import DeviceNodes
from beds.cluster.nodes import RESOURCE
from beds.operator.gangs import RACK, Gangs, device_job, in_rack
from beds.operator.namespace import condition
from beds.operator.wait import eventually

pytestmark = pytest.mark.long

SIZE = 4
ROUNDS = 8
RESNETBOOST = str(Path(sys.executable).with_name("resnetboost"))


def why(gangs: Gangs, job: str, reason: str) -> str:
    """The message of the condition Running as soon as it has that reason."""
    status = gangs.until(lambda status: condition(status, "Running").get("reason") == reason, reason, job)
    return str(condition(status, "Running")["message"])


def test_describe_and_status_show_the_schedulers_words_for_the_group(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE - 1)
    gangs.create(device_job("a"))
    gangs.until_refused("a-base-0")
    # The scheduler's words change while pods come; the condition follows them.
    lacking = f"; 0/{SIZE - 1} nodes are available: {SIZE - 1} Insufficient {RESOURCE}"
    eventually(
        lambda: (gangs.verdict("a-base-0")["message"], why(gangs, "a", "Unschedulable")),
        lambda found: f"0/{SIZE} ranks are scheduled: {found[0]}{lacking}" in found[1],
        "the condition has the scheduler's words and what nodes lack",
        gangs.patience_seconds,
    )
    words = gangs.verdict("a-base-0")["message"]
    described = gangs.plane.kubectl("describe", "rbj", "a", f"--namespace={gangs.namespace}")
    assert f"{words}{lacking}" in described
    assert described.count(f"0/{SIZE} ranks are scheduled: ") == 2, "in the condition and in the event"
    shown = subprocess.run(
        [RESNETBOOST, "status", "a", f"--namespace={gangs.namespace}"],
        env={**gangs.plane.environment(), "NO_PROXY": "*", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert words in " ".join(shown.stdout.split()), shown.stderr


def test_a_label_that_no_node_has_is_named(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    device_nodes.add(SIZE, labels={RACK: "only"})
    gangs.create(device_job("a", schedulingConstraints=in_rack("example.com/row")))
    message = why(gangs, "a", "Unschedulable")
    assert "no node has the label example.com/row: correct scheduling.schedulingConstraints or label" in message
    assert gangs.nodes("a") == []


def test_a_scheduler_that_is_not_there_is_named(gangs: Gangs, device_nodes: DeviceNodes) -> None:
    gangs.patience_seconds = 60  # it may have half of them to say something
    device_nodes.add(SIZE)
    gangs.create(device_job("a", schedulerName="nobody"))
    message = why(gangs, "a", "SchedulerSilent")
    assert "no scheduler named nobody has looked at 4 pods for 30 s" in message


def test_an_unknown_gang_scheduler_starts_nothing_where_a_gang_is_required(
    gangs: Gangs, device_nodes: DeviceNodes
) -> None:
    device_nodes.add(SIZE)
    gangs.create(device_job("a", schedulerName="nobody", schedulingPolicy={"gang": {}}))
    assert "no gang scheduler is known by the schedulerName nobody" in why(gangs, "a", "NoGangScheduler")
    assert gangs.pods_of("a") == []


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2, 2), (3, 3)], ids=str)
def test_whole_nodes_are_found_where_no_smaller_node_misleads(
    gangs: Gangs, device_nodes: DeviceNodes, sizes: tuple[int, ...]
) -> None:
    for devices in sizes:
        device_nodes.add(1, devices=devices)
    for turn in range(ROUNDS):
        job = f"a-{turn}"
        gangs.create(device_job(job, per_node=2))
        gangs.until_running(job)
        first, second, third, fourth = gangs.nodes(job)
        assert (first, third) == (second, fourth)
        assert first != third
        gangs.complete(job)


def test_a_gang_by_whole_nodes_may_miss_its_place_and_then_holds_nothing(
    gangs: Gangs, device_nodes: DeviceNodes
) -> None:
    """A limit of Kubernetes 1.36, which tries one node for a pod that others must join."""
    for devices in (1, 1, 1, 1, 2, 2):
        device_nodes.add(1, devices=devices)
    for turn in range(ROUNDS):
        job = f"a-{turn}"
        gangs.create(device_job(job, per_node=2))
        whole = gangs.until_judged(f"{job}-base-0")["status"] == "True"
        if whole:
            gangs.until_running(job)
        assert len(gangs.nodes(job)) == (SIZE if whole else 0)
        gangs.delete("resnetboostjobs", job, propagationPolicy="Foreground")
        gangs.until_pods()
