"""Ascend gangs on a real API server and scheduler: rank tables from annotations, and how soon they are published."""

import json
import time
from typing import Any

import pytest

from beds.operator import Kubelet, Space
from beds.operator.devices import NODES, DevicePlugin
from beds.operator.jobs import job
from beds.operator.namespace import condition, is_true
from beds.operator.wait import eventually
from resnetboost_api import names
from resnetboost_operator.ranktable.check import verdict as checking

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator", "kubelet")]

DELIVERY_SECONDS = 2.0


@pytest.fixture
def plugin(space: Space) -> DevicePlugin:
    return DevicePlugin(space.plane, space.namespace)


def started(space: Space, count: int, **device: Any) -> list[dict[str, Any]]:
    space.create(job(device={"type": "Ascend", "count": count, **device}))
    space.until_started()
    return space.pods()


def until_ready(space: Space) -> dict[str, Any]:
    return space.until(lambda status: is_true(status, "RankTableReady"), "the rank table is published")


def told(pods: list[dict[str, Any]]) -> list[str]:
    return [pod["metadata"].get("annotations", {}).get(names.ANNOTATION_RANK_TABLE, "") for pod in pods]


def test_annotations_in_any_order_become_a_published_table(space: Space, plugin: DevicePlugin) -> None:
    pods = started(space, 4, perNode=2)
    assert {pod["spec"]["nodeName"] for pod in pods} == set(NODES)
    for pod in (pods[2], pods[0], pods[3]):
        plugin.allocate(pod)
    status = space.until(
        lambda status: "1 of 4 pods" in condition(status, "RankTableReady").get("message", ""), "one is missing"
    )
    assert "first digits-base-0-1" in condition(status, "Running")["message"]
    plugin.allocate(pods[1])
    status = until_ready(space)
    published = space.get("configmaps", space.rank_table())
    ranks = json.loads(published["data"][names.RANKS_KEY])
    verdict = checking.judge_bytes(published["data"][names.RANK_TABLE_KEY].encode(), "910A")
    assert (verdict.findings, published["immutable"]) == ((), True)
    assert ranks == {"sha256": status["rankTable"], "ranks": [0, 1, 2, 3]}
    assert told(space.pods()) == [status["rankTable"]] * 4
    (port,) = space.get("services", "digits-base-0")["spec"]["ports"]
    assert port["name"] == "launcher", "the coordinator is HCCL's own"


def test_sixteen_pods_are_told_within_two_seconds_of_the_last_annotation(space: Space, plugin: DevicePlugin) -> None:
    pods = started(space, 16, perNode=8)
    for pod in pods[:-1]:
        plugin.allocate(pod)
    plugin.allocate(pods[-1])
    begun = time.monotonic()
    eventually(lambda: told(space.pods()), all, "every pod is told", DELIVERY_SECONDS)
    print(f"16 pods were told {time.monotonic() - begun:.2f} s after the last annotation")
    until_ready(space)


def test_a_table_that_hccl_would_refuse_is_not_published(space: Space, plugin: DevicePlugin) -> None:
    pods = started(space, 2)
    for pod in pods:
        plugin.allocate(pod, "10.0.0.9")
    status = space.until(lambda status: condition(status, "RankTableReady").get("reason") == "Refused", "it is refused")
    assert "HCCL: EI0014" in condition(status, "RankTableReady")["message"]
    assert space.names_of("configmaps") == [space.config_map()]
    plugin.tell(pods[0], 0, "10.0.0.1")
    until_ready(space)


def test_a_restarted_gang_has_a_table_of_its_own_and_leaves_none(
    space: Space, kubelet: Kubelet, plugin: DevicePlugin
) -> None:
    for pod in started(space, 2):
        plugin.allocate(pod)
    before = until_ready(space)
    kubelet.exit("digits-base-0-1", 137)
    after = space.until_started(attempt=1)
    assert (condition(after, "RankTableReady")["status"], "rankTable" in after) == ("False", False)
    for pod in space.pods():
        plugin.allocate(pod)
    assert until_ready(space)["rankTable"] != before["rankTable"]
    assert space.names_of("configmaps") == [space.config_map(1), space.rank_table(1)]


def test_a_foreign_config_map_of_the_tables_name_is_reported(space: Space, plugin: DevicePlugin) -> None:
    pods = started(space, 2)
    name = space.rank_table()
    space.create({"kind": "ConfigMap", "metadata": {"name": name}})
    for pod in pods:
        plugin.allocate(pod)
    words = f"ConfigMap {name} exists and is not this job's"
    space.until(lambda status: words in condition(status, "RankTableReady").get("message", ""), words)
    assert not any(told(space.pods()))
    space.delete("configmaps", name)
    until_ready(space)
