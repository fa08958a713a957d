"""Planning of rank tables, from device annotations to a published table: waiting, refusals, patches, repetition."""

import contextlib
import hashlib
import json
from typing import Any

import pytest

from resnetboost_api import names
from resnetboost_api.status import Condition
from resnetboost_operator import status
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.state import Obstacle
from resnetboost_operator.planning import actions
from resnetboost_operator.ranktable.check import verdict
from resnetboost_operator.status import RANK_TABLE_READY
from support.simulation import Cluster, Crash, job

TABLE = "digits-base-0-0000-111-ranks"


def ascend(count: int = 4, **spec: Any) -> Cluster:
    """An Ascend job whose pods are bound (two per node) and running, but not annotated yet."""
    device = {"type": "Ascend", "count": count} | spec.pop("device", {})
    cluster = Cluster(job(device=device, failurePolicy={"backoffSeconds": 0}, **spec))
    cluster.settle()
    start(cluster)
    return cluster


def start(cluster: Cluster) -> None:
    cluster.run_all()
    for index in range(len(cluster.gang())):
        cluster.bind(index, f"node-{index // 2}")
    cluster.step()


def allocate(cluster: Cluster, *indexes: int) -> None:
    """Allocate devices in descending order of pod index, so that no rank equals an index."""
    for index in indexes or range(len(cluster.gang())):
        cluster.allocate(index, 7 - index % 2, f"10.0.0.{index + 1}")


def condition(cluster: Cluster) -> Condition:
    found = status.condition(cluster.status, RANK_TABLE_READY)
    assert found is not None
    return found


def table(cluster: Cluster, name: str = TABLE) -> bytes:
    return str(cluster.config_maps[name]["data"][names.RANK_TABLE_KEY]).encode()


def ranks(cluster: Cluster, name: str = TABLE) -> Any:
    return json.loads(cluster.config_maps[name]["data"][names.RANKS_KEY])


def annotated(cluster: Cluster) -> list[str]:
    return [pod["metadata"].get("annotations", {}).get(names.ANNOTATION_RANK_TABLE, "") for pod in cluster.gang()]


def test_a_table_is_published_as_soon_as_the_last_annotation_is_there() -> None:
    cluster = ascend()
    allocate(cluster, 3, 0, 2)
    cluster.settle()
    assert TABLE not in cluster.config_maps
    allocate(cluster, 1)
    cluster.settle()
    digest = hashlib.sha256(table(cluster)).hexdigest()
    assert verdict.judge_bytes(table(cluster), "910B").findings == ()
    assert ranks(cluster) == {"sha256": digest, "ranks": [1, 0, 3, 2]}
    assert annotated(cluster) == [digest] * 4
    assert cluster.status.rank_table == digest
    assert (condition(cluster).status, condition(cluster).reason) == ("True", "Published")
    assert cluster.config_maps[TABLE]["immutable"] is True


def test_the_order_of_annotations_changes_nothing() -> None:
    tables = set()
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        cluster = ascend()
        for index in order:
            allocate(cluster, index)
            cluster.step()
        cluster.settle()
        tables.add(table(cluster))
    assert len(tables) == 1


def test_missing_annotations_are_the_pending_reason() -> None:
    cluster = ascend()
    allocate(cluster, 0, 2)
    cluster.step()
    assert condition(cluster).reason == "AnnotationsMissing"
    assert condition(cluster).message.startswith(
        "2 of 4 pods have no annotation of the device plugin yet, first digits-base-0-1, digits-base-0-3"
    )
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert (running.reason, running.message) == (condition(cluster).reason, condition(cluster).message)


def test_annotations_that_never_come_meet_the_startup_deadline_which_names_the_pods() -> None:
    cluster = ascend(runPolicy={"startupDeadlineSeconds": 60})
    allocate(cluster, 0, 1, 2)
    cluster.step()
    cluster.now += 60
    cluster.step()
    (record,) = cluster.status.attempts
    assert record.reason == "StartupDeadlineExceeded"
    assert "first digits-base-0-3" in record.message


def test_a_gang_that_is_not_all_bound_has_no_table() -> None:
    cluster = Cluster(job(device={"type": "Ascend", "count": 2}))
    cluster.settle()
    cluster.bind(0, "node-0")
    cluster.allocate(0, 0, "10.0.0.1")
    cluster.settle()
    assert (condition(cluster).status, condition(cluster).reason) == ("False", "GangIncomplete")


@pytest.mark.parametrize(
    "device",
    [
        {"type": "CPU", "count": 2},
        {"type": "GPU", "count": 2},
        {"type": "Ascend", "count": 1},
        {"type": "Ascend", "count": 2, "rendezvous": "Coordinator"},
    ],
    ids=["CPU", "GPU", "one Ascend device", "Ascend with a coordinator"],
)
def test_jobs_without_a_rank_table_do_not_wait(device: dict[str, Any]) -> None:
    cluster = Cluster(job(device=device)).started()
    assert cluster.status.phase == "Running"
    assert status.condition(cluster.status, RANK_TABLE_READY) is None
    assert set(cluster.config_maps) == {"digits-base-0-0000-111"}


def refused() -> Cluster:
    """A refused table: two pods of different nodes with one address."""
    cluster = ascend()
    for index in range(4):
        cluster.allocate(index, index % 2, f"10.0.0.{max(1, index)}")
    cluster.step()
    return cluster


def test_a_refusal_names_the_pod_and_hccls_rule() -> None:
    cluster = refused()
    assert (condition(cluster).status, condition(cluster).reason) == ("False", "Refused")
    assert condition(cluster).message.startswith("pod digits-base-0-1: ")
    assert "HCCL: EI0014" in condition(cluster).message
    assert (cluster.status.phase, cluster.status.restarts) == ("Starting", 0)


def test_a_refusal_that_the_device_plugin_corrects_in_time_is_forgotten() -> None:
    cluster = refused()
    assert cluster.step().wake_seconds == 30
    cluster.now += 29
    cluster.allocate(1, 1, "10.0.0.9")
    cluster.settle()
    assert condition(cluster).status == "True"
    assert (cluster.status.failure_time, cluster.status.restarts) == (None, 0)


def test_a_refusal_that_stays_restarts_the_gang_and_uses_the_budget() -> None:
    cluster = refused()
    cluster.now += 30
    cluster.step()
    (record,) = cluster.status.attempts
    assert (record.reason, record.rank, record.node) == ("RankTableRefused", 1, "node-0")
    assert "HCCL: EI0014" in record.message
    assert (cluster.status.attempt, cluster.status.restarts_count_towards_max) == (1, 1)
    assert cluster.status.rank_table is None
    assert condition(cluster).reason == "GangIncomplete"


def test_a_refusal_in_every_attempt_fails_the_job_with_the_rule() -> None:
    cluster = refused()
    for _ in range(6):
        cluster.now += 30
        cluster.settle()
        start(cluster)
        for index in range(len(cluster.gang())):
            cluster.allocate(index, index % 2, f"10.0.0.{max(1, index)}")
        cluster.step()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "MaxRestartsExceeded"
    assert "HCCL: EI0014" in failed.message


def test_pods_of_several_devices_fail_the_job_at_once() -> None:
    cluster = ascend(count=2)
    devices = [{"device_id": "0", "device_ip": "10.0.0.1"}, {"device_id": "1", "device_ip": "10.0.0.2"}]
    for index in (0, 1):
        cluster.allocate(index, 0, "", devices=devices)
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "RankTableImpossible"
    assert "exactly one device" in failed.message


def test_a_restarted_gang_gets_a_table_of_its_own() -> None:
    cluster = ascend()
    allocate(cluster)
    cluster.settle()
    cluster.exit(2, 137)
    cluster.settle()
    assert (condition(cluster).status, condition(cluster).reason) == ("False", "GangIncomplete")
    start(cluster)
    for index in range(4):
        cluster.allocate(index, index % 2, f"10.0.1.{index + 1}")
    cluster.settle()
    assert ranks(cluster, "digits-base-1-0000-111-ranks")["ranks"] == [0, 1, 2, 3]
    assert (
        cluster.status.rank_table
        == ranks(cluster, "digits-base-1-0000-111-ranks")["sha256"]
        != ranks(cluster)["sha256"]
    )
    assert condition(cluster).status == "True"


@pytest.mark.parametrize("writes", range(6))
def test_a_crash_while_publishing_is_recovered(writes: int) -> None:
    """The writes are the status, the config map and four annotations."""
    cluster = ascend()
    allocate(cluster)
    with contextlib.suppress(Crash):
        cluster.step(crash_after=writes)
        raise AssertionError("it did not die")
    cluster.settle()
    assert annotated(cluster) == [cluster.status.rank_table] * 4
    assert condition(cluster).status == "True"


def test_rank_table_ready_follows_the_last_pod_annotation() -> None:
    cluster = ascend()
    allocate(cluster)
    cluster.step()
    assert (condition(cluster).status, condition(cluster).reason) == ("False", "Publishing")
    cluster.step()
    assert condition(cluster).status == "True"


def test_devices_that_change_while_the_table_is_being_published_restart_the_gang() -> None:
    cluster = ascend()
    allocate(cluster)
    with contextlib.suppress(Crash):
        cluster.step(crash_after=3)
    cluster.allocate(3, 0, "10.0.9.9")
    cluster.step()
    assert "reported other devices" in condition(cluster).message
    cluster.now += 30
    cluster.step()
    assert cluster.status.attempts[0].reason == "RankTableRefused"


def test_devices_that_change_after_the_table_was_published_change_nothing() -> None:
    cluster = ascend()
    allocate(cluster)
    cluster.settle()
    before = cluster.status
    cluster.allocate(3, 0, "10.0.9.9")
    cluster.settle()
    assert cluster.status == before


def test_a_rank_that_is_done_and_collected_leaves_the_table_as_it_is() -> None:
    cluster = ascend()
    allocate(cluster)
    cluster.settle()
    cluster.train_to(5)
    cluster.exit(3, 0)
    cluster.step()
    cluster.vanish(3)
    cluster.settle()
    assert condition(cluster).status == "True"
    assert cluster.status.restarts == 0


def test_a_pod_that_is_replaced_before_the_gang_was_whole_counts_with_its_new_device() -> None:
    cluster = Cluster(job(device={"type": "Ascend", "count": 2}))
    cluster.step()
    cluster.run_all()
    cluster.allocate(0, 0, "10.0.0.1")
    cluster.vanish(1)
    cluster.step()
    start(cluster)
    cluster.allocate(1, 5, "10.0.0.2")
    cluster.settle()
    assert cluster.status.attempt == 0
    assert b'"device_id":"5"' in table(cluster)


def test_a_pod_that_kubelet_rejects_for_its_device_restarts_the_gang() -> None:
    """A device can turn out unhealthy only after it was allocated."""
    cluster = ascend()
    allocate(cluster, 0, 1, 2)
    failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
    cluster.rank(3)["status"] = failed
    cluster.step()
    (record,) = cluster.status.attempts
    assert (record.reason, record.rank, cluster.status.restarts_count_towards_max) == ("Rejected", 3, 0)


def test_a_refused_config_map_is_the_pending_reason() -> None:
    cluster = ascend()
    allocate(cluster)
    words = "ConfigMap digits-base-0-0000-111-ranks exists and is not this job's: delete it, or rename the job"
    cluster.obstacle = Obstacle(words)
    assert cluster.step().annotate, "once the config map is there, every pod is annotated"
    for pod in cluster.gang():
        pod["metadata"]["annotations"].pop(names.ANNOTATION_RANK_TABLE)
    cluster.step()
    assert (condition(cluster).reason, condition(cluster).message) == (
        "NotPublished",
        f"the rank table cannot be published: {words}",
    )


def test_annotations_are_bound_to_the_pods_uid() -> None:
    cluster = ascend()
    allocate(cluster)
    wanted = cluster.plan().annotate
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.gang()}
    digest = cluster.plan().status.rank_table
    key = names.ANNOTATION_RANK_TABLE
    assert wanted == tuple(actions.Annotation(name, uids[name], key, digest or "") for name in sorted(uids))


@pytest.mark.parametrize(
    ("chips", "device", "reason"),
    [
        ({"node-0": "910A", "node-1": "910A"}, {}, "Refused"),
        ({"node-0": "910B", "node-1": None}, {}, "Publishing"),
        ({}, {}, "Publishing"),
        ({"node-0": "910A", "node-1": "910A"}, {"chip": "910B"}, "Publishing"),
        ({}, {"chip": "910A"}, "Refused"),
    ],
    ids=["nodes say 910A", "one node says 910B", "nobody says anything", "the job overrules", "the job says 910A"],
)
def test_the_rules_are_those_of_the_chip(chips: dict[str, Any], device: dict[str, Any], reason: str) -> None:
    """Two devices of different rings of a node, which is an error only on a 910A."""
    cluster = ascend(device=device)
    cluster.nodes = {name: NodeView(name, True, chip=chip) for name, chip in chips.items()}
    for index in range(4):
        cluster.allocate(index, 3 + index % 2, f"10.0.0.{index + 1}")
    cluster.step()
    assert condition(cluster).reason == reason


def test_a_gang_on_different_chips_is_refused() -> None:
    cluster = ascend()
    cluster.nodes = {
        "node-0": NodeView("node-0", True, chip="910B"),
        "node-1": NodeView("node-1", True, chip="A3"),
    }
    allocate(cluster)
    cluster.step()
    assert "have chips 910B and A3" in condition(cluster).message


def test_a_job_that_is_suspended_before_its_table_came_gets_one_when_it_goes_on() -> None:
    cluster = ascend()
    allocate(cluster, 0)
    cluster.job = job(device={"type": "Ascend", "count": 4}, runPolicy={"suspend": True})
    cluster.settle()
    assert cluster.status.phase == "Suspended"
    cluster.job = job(device={"type": "Ascend", "count": 4})
    cluster.settle()
    start(cluster)
    allocate(cluster)
    cluster.settle()
    assert condition(cluster).status == "True"


def test_the_table_of_an_attempt_is_swept_with_it() -> None:
    cluster = ascend()
    allocate(cluster)
    cluster.settle()
    labels = cluster.config_maps[TABLE]["metadata"]["labels"]
    assert (labels[names.LABEL_JOB_UID], labels[names.LABEL_ATTEMPT]) == ("0000-1111", "0")
