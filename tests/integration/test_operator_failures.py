"""Failures of a gang and the job's reaction, on a real API server."""

import datetime
import itertools
import json
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.operator import Kubelet, Operator, Space
from beds.operator.jobs import CLAIM, job
from beds.operator.namespace import JOB, condition
from beds.operator.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

GANG = ("digits-base-0-0", "digits-base-0-1")
NEXT_GANG = ("digits-base-1-0", "digits-base-1-1")


def started(space: Space, **spec: Any) -> None:
    space.create(job(**spec))
    space.until_started()


def test_a_failed_rank_restarts_the_whole_gang_and_is_recorded(space: Space, kubelet: Kubelet) -> None:
    kubelet.tell(step=120, checkpointStep=100)
    space.add_claim(CLAIM)
    space.create(job(checkpoint={"claimName": CLAIM}))
    space.until_phase("Running")
    node = space.get("pods", GANG[1])["spec"]["nodeName"]
    kubelet.exit(GANG[1], 137, "OOMKilled")
    status = space.until_started(attempt=1)
    (record,) = status["attempts"]
    known = {key: record[key] for key in ("attempt", "stage", "reason", "exitCode", "rank", "node")}
    assert known == {"attempt": 0, "stage": "base", "reason": "OutOfMemory", "exitCode": 137, "rank": 1, "node": node}
    assert (record["lastStep"], record["checkpointStep"]) == (120, 100)
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)
    space.until_pods(*NEXT_GANG)
    assert space.names_of("configmaps") == [space.config_map(1)]
    assert space.names_of("services") == ["digits-base-1"]
    assert "GangRestart" in space.event_reasons()


def test_the_termination_message_is_recorded(space: Space, kubelet: Kubelet) -> None:
    started(space)
    words = {"class": "InternalError", "message": "IndexError: list index out of range", "step": 33}
    kubelet.exit(GANG[0], 1, report=words)
    (record,) = space.until_started(attempt=1)["attempts"]
    assert (record["reason"], record["lastStep"], record["message"]) == ("InternalError", 33, words["message"])


def test_the_next_gang_waits_for_the_back_off(space: Space, kubelet: Kubelet) -> None:
    started(space, failurePolicy={"backoffSeconds": 3})
    kubelet.exit(GANG[0], 137)
    status = space.until_phase("Restarting")
    assert "restarts in 3 s" in condition(status, "Running")["message"]
    space.until_pods()
    status = space.until_started(attempt=1)
    waited = moment(status["attemptCreationTime"]) - moment(status["attempts"][0]["endTime"])
    assert waited >= datetime.timedelta(seconds=3)


def test_each_new_pod_waits_for_its_predecessor_alone(space: Space, kubelet: Kubelet) -> None:
    kubelet.ends = False
    started(space)
    kubelet.exit(GANG[1], 137)
    space.until_pods(GANG[0], NEXT_GANG[1])
    kubelet.release()
    space.until_started(attempt=1)
    space.until_pods(*NEXT_GANG)


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def test_a_budget_that_is_used_up_fails_the_job(space: Space, kubelet: Kubelet) -> None:
    started(space, failurePolicy={"maxRestarts": 1, "backoffSeconds": 0})
    kubelet.exit(GANG[0], 137, report={"step": 5})
    space.until_started(attempt=1)
    kubelet.exit(NEXT_GANG[1], 137, report={"step": 9})
    status = space.until_phase("Failed")
    assert condition(status, "Failed")["reason"] == "MaxRestartsExceeded"
    assert [record["attempt"] for record in status["attempts"]] == [0, 1]
    space.until_pods(NEXT_GANG[1])  # the failed pod is kept for its log


@pytest.mark.parametrize(("code", "reason"), [(10, "ConfigError"), (11, "DataError"), (12, "NumericsError")])
def test_an_error_that_would_repeat_fails_the_job_at_once(
    space: Space, kubelet: Kubelet, code: int, reason: str
) -> None:
    started(space)
    kubelet.exit(GANG[0], code, report={"class": reason, "message": "dataset.path: no such file"})
    status = space.until_phase("Failed")
    failed = condition(status, "Failed")
    assert (failed["reason"], status["restarts"]) == (reason, 0)
    assert "no such file" in failed["message"]


def test_failed_is_final(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    started(space)
    kubelet.exit(GANG[0], 10)
    before = space.until_phase("Failed")
    space.until_pods(GANG[0])
    space.delete("pods", GANG[0])
    space.until_pods()
    operator.kill()
    operator.start()
    space.create(job("other", ranks=1))
    space.until_started(job="other")
    assert (space.status(), space.names_of("pods")) == (before, ["other-base-0-0"])


def test_a_deleted_pod_restarts_the_gang_without_using_the_budget(space: Space, kubelet: Kubelet) -> None:
    started(space, failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})
    space.delete("pods", GANG[1])
    status = space.until_started(attempt=1)
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)
    space.until_pods(*NEXT_GANG)


def test_an_evicted_pod_restarts_the_gang_without_using_the_budget(space: Space, kubelet: Kubelet) -> None:
    started(space, failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})
    path = f"/api/v1/namespaces/{space.namespace}/pods/{GANG[1]}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": GANG[1]}}
    space.plane.client.send("POST", path, eviction)
    status = space.until_started(attempt=1)
    (record,) = status["attempts"]
    assert (record["reason"], record["rank"]) == ("Disrupted", 1)
    assert "EvictionByEvictionAPI" in record["message"]
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)


def test_a_preempted_pod_restarts_the_gang_without_using_the_budget(space: Space, kubelet: Kubelet) -> None:
    started(space, failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})
    kubelet.disrupt(GANG[0], "PreemptionByScheduler")
    kubelet.exit(GANG[0], 137)
    status = space.until_started(attempt=1)
    assert (status["attempts"][0]["reason"], status["restartsCountTowardsMax"]) == ("Disrupted", 0)


def test_a_lost_node_restarts_the_gang_elsewhere(space: Space, kubelet: Kubelet, control_plane: ControlPlane) -> None:
    kubelet.ends = False  # no kubelet confirms that a pod has stopped
    add_node(control_plane, space.namespace)
    node_only = {"nodeSelector": {"kubernetes.io/hostname": space.namespace}}
    started(space, template=node_only, failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})
    fall_silent(control_plane, space.namespace)
    space.patience_seconds = 60  # the operator waits 30 s by its own clock, whatever times the node reports
    status = space.until(lambda status: status["attempt"] == 1, "the gang restarts")
    (record,) = status["attempts"]
    assert (record["reason"], record["node"]) == ("PodLost", space.namespace)
    assert status["restartsCountTowardsMax"] == 0
    space.until_pods(*NEXT_GANG)
    control_plane.client.send("DELETE", f"/api/v1/nodes/{space.namespace}")


def add_node(plane: ControlPlane, name: str) -> None:
    plane.add_node(name)


def fall_silent(plane: ControlPlane, name: str) -> None:
    """Mark a node as the node controller does when its kubelet has not reported for long."""
    unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2020-01-01T00:00:00Z", "reason": "Gone"}
    path = f"/api/v1/nodes/{name}/status"
    plane.client.send("PATCH", path, {"status": {"conditions": [unknown]}}, "application/strategic-merge-patch+json")
    taint = {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]}}
    plane.client.send("PATCH", f"/api/v1/nodes/{name}", taint, "application/merge-patch+json")


def test_a_gang_that_never_trains_is_restarted_after_the_startup_deadline(space: Space, kubelet: Kubelet) -> None:
    started(space, runPolicy={"startupDeadlineSeconds": 2})
    status = space.until(lambda status: status["attempt"] == 1, "the gang restarts")
    assert status["attempts"][0]["reason"] == "StartupDeadlineExceeded"
    space.change("digits", runPolicy={"startupDeadlineSeconds": 600})
    space.until_started(attempt=space.status()["attempt"])


def test_the_active_deadline_fails_the_job_and_its_ranks_may_save(space: Space, kubelet: Kubelet) -> None:
    kubelet.ends = False
    started(space, runPolicy={"activeDeadlineSeconds": 10})  # a busy machine starts the pods in 3
    status = space.until_phase("Failed")
    assert condition(status, "Failed")["reason"] == "DeadlineExceeded"

    def graces() -> list[int]:
        return [pod["metadata"].get("deletionGracePeriodSeconds", -1) for pod in space.pods()]

    eventually(graces, lambda found: found == [60, 60], "the pods have their grace")
    kubelet.release()
    space.until_pods()


def test_only_a_stalled_heartbeat_is_a_hang(space: Space, kubelet: Kubelet) -> None:
    kubelet.tell(step=50)
    policy = {"hangTimeoutSeconds": 10, "backoffSeconds": 0}
    for name in ("still", "moving"):
        space.create(job(name, ranks=1, failurePolicy=policy))
    steps = itertools.count(50)

    def train_on() -> dict[str, Any]:
        step = next(steps)
        kubelet.told_of["moving"] = {"state": "Training", "step": step, "heartbeat": step}
        return space.status("still")

    status = eventually(train_on, lambda found: found.get("attempts"), "the gang is taken for hung")
    assert (status["attempts"][0]["reason"], status["attempts"][0]["lastStep"]) == ("Hang", 50)
    space.until(lambda found: found["attempt"] >= 1, "the gang restarts", job="still")
    assert (space.status("moving")["phase"], space.status("moving")["restarts"]) == ("Running", 0)


def test_an_image_that_can_never_come_fails_the_job(space: Space, kubelet: Kubelet) -> None:
    kubelet.starts = False
    space.create(job(template={"image": "registry.invalid/no/such:image"}))
    pods = space.until_pods(*GANG)
    eventually(space.pods, lambda found: all("nodeName" in pod["spec"] for pod in found), "the pods are bound")
    kubelet.wait_for_image(GANG[0], "ErrImagePull", "pull access denied")
    space.until(lambda status: "pull access denied" in condition(status, "Running")["message"], "the reason is said")
    kubelet.wait_for_image(GANG[0], "InvalidImageName", "couldn't parse image name")
    status = space.until_phase("Failed")
    assert condition(status, "Failed")["reason"] == "ImageError"
    assert len(pods) == 2


def test_records_of_many_restarts_stay_small(space: Space, kubelet: Kubelet) -> None:
    space.create(job(ranks=1, failurePolicy={"maxRestarts": 100, "backoffSeconds": 0}))
    for attempt in range(23):
        space.until_started(attempt)
        message = {"class": "Killed", "step": attempt, "message": "x" * 4000}
        kubelet.exit(f"digits-base-{attempt}-0", 137, report=message)
    status = space.until_started(attempt=23)
    assert [record["attempt"] for record in status["attempts"]] == list(range(3, 23))
    assert len(json.dumps(space.get(JOB, "digits"))) < 100_000


def test_a_malformed_termination_message_is_harmless(space: Space, kubelet: Kubelet) -> None:
    started(space)
    kubelet.exit(GANG[0], 137, report={"class": ["ConfigError"], "step": -(2**70), "checkpointStep": "many"})
    status = space.until_started(attempt=1)
    assert status["attempts"][0]["reason"] == "Killed"


def test_restarts_are_counted_by_reason(space: Space, kubelet: Kubelet, operator: Operator) -> None:
    started(space)
    kubelet.exit(GANG[0], 15, report={"class": "StorageError", "message": "disk full"})
    space.until_started(attempt=1)
    assert 'resnetboost_operator_restarts_total{reason="StorageError"} 1.0' in operator.answer("/metrics")
