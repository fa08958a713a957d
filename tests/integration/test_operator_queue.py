"""A job in a queue of Kueue: waiting, admission, eviction, end; on a real API server with a stand-in for Kueue."""

from collections.abc import Iterator
from typing import Any

import pytest

from beds.cluster import ControlPlane
from beds.operator import Kubelet, Space
from beds.operator.jobs import CLAIM, QUEUE, job, queued
from beds.operator.namespace import JOB, condition, is_true
from beds.operator.wait import eventually, throughout
from beds.queue import Kueue, kinds, webhook
from beds.queue.topology import HOSTNAME
from resnetboost_api import names
from support.kueuestatus import condition as workload_condition
from support.kueuestatus import holds_quota

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]

GANG = ("digits-base-0-0", "digits-base-0-1")
NEXT_GANG = ("digits-base-1-0", "digits-base-1-1")


@pytest.fixture(scope="module")
def operator_options(kueue_installed: None) -> list[str]:
    """It queues jobs."""
    return ["--kueue"]


@pytest.fixture
def kueue(control_plane: ControlPlane, space: Space, kubelet: Kubelet) -> Iterator[Kueue]:
    """Kueue for the test's namespace, with a queue for one job of two pods."""
    with Kueue(control_plane, space.namespace) as kueue:
        kueue.set_queue(QUEUE, 2)
        yield kueue
        assert kueue.broken_promises() == []


def until_admission(space: Space, reason: str, *words: str, job: str = "digits") -> dict[str, Any]:
    def is_said(status: dict[str, Any]) -> bool:
        admitted = condition(status, "Admitted")
        return admitted.get("reason") == reason and all(word in admitted["message"] for word in words)

    return space.until(is_said, f"Admitted has the reason {reason}: {words}", job)


def relabel(space: Space, queue: str) -> None:
    space.patch(JOB, "digits", {"metadata": {"labels": {names.LABEL_QUEUE: queue}}})


def is_ready(value: str, reason: str) -> Any:
    return lambda found: (
        [workload_condition(found, "PodsReady").get(key) for key in ("status", "reason")] == [value, reason]
    )


def test_of_two_jobs_in_a_queue_for_one_the_second_waits(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job()))
    space.until_started()
    space.create(queued(job("other")))
    status = until_admission(space, "WaitingForQuota", "insufficient unused quota", "2 more needed", job="other")
    assert (status["phase"], is_true(status, "Admitted"), "startTime" in status) == ("Queued", False, False)
    assert "2 more needed" in condition(status, "Running")["message"]
    assert space.names_of("pods") == list(GANG)
    assert space.names_of("configmaps") == [space.config_map()], "of a job that waits there is its Workload alone"
    kubelet.succeed(*GANG)
    kueue.until_reason("digits", "Finished", "Succeeded")
    status = space.until_started(job="other")
    assert is_true(status, "Admitted")
    assert kueue.counts() == {"workloads": 2, "evictions": 0, "releases": 0}
    assert {"Queued", "Admitted"} <= set(space.event_reasons())


def test_pods_get_what_their_flavor_says(control_plane: ControlPlane, space: Space, kueue: Kueue) -> None:
    toleration = {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"}
    kinds.add_flavor(control_plane, "spot", nodeLabels={HOSTNAME: "node-1"}, tolerations=[toleration])
    kueue.set_queue(QUEUE, 2, flavor="spot")
    space.create(queued(job()))
    space.until_started()
    for pod in space.until_pods(*GANG):
        assert (pod["spec"]["nodeName"], pod["spec"]["nodeSelector"][HOSTNAME]) == ("node-1", "node-1")
        assert (
            toleration.items() <= next(x for x in pod["spec"]["tolerations"] if x["key"] == "example.com/spot").items()
        )
        labels = pod["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/podset"] == "ranks"
        assert labels["kueue.x-k8s.io/local-queue-name"] == QUEUE
        assert labels["kueue.x-k8s.io/cluster-queue-name"] == f"cluster-{QUEUE}"


def test_a_flavor_that_does_not_exist_yet(control_plane: ControlPlane, space: Space, kueue: Kueue) -> None:
    kueue.set_queue(QUEUE, 2, flavor=space.namespace)
    space.create(queued(job()))
    space.until(lambda status: condition(status, "Running").get("reason") == "FlavorUnknown", "it waits for the flavor")
    assert space.pods() == []
    kinds.add_flavor(control_plane, space.namespace)
    space.until_started()


@pytest.mark.parametrize("places", [{"node-0": 1, "node-1": 3}, {"node-1": 2, "node-0": 2}], ids=["uneven", "even"])
def test_each_rank_goes_to_the_node_of_its_topology_assignment(
    space: Space, kueue: Kueue, places: dict[str, int]
) -> None:
    kueue.set_queue(QUEUE, 4, nodes=places)
    topology = {"schedulingConstraints": {"topology": [{"key": HOSTNAME}]}}
    space.create(queued(job(ranks=4, scheduling=topology)))
    space.until_started()
    assert kueue.workload("digits")["spec"]["podSets"][0]["topologyRequest"]["required"] == HOSTNAME
    wanted = [node for node, count in places.items() for _ in range(count)]
    assert [pod["spec"]["nodeName"] for pod in space.pods()] == wanted
    annotations = space.pods()[0]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-required-topology"] == HOSTNAME


def test_an_evicted_job_saves_and_comes_back_at_its_place(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    kubelet.ends, kubelet.saved_step = False, 33
    space.add_claim(CLAIM)
    space.create(queued(job(checkpoint={"claimName": CLAIM})))
    space.until_started()
    space.create(queued(job("later")))
    until_admission(space, "WaitingForQuota", job="later")
    before = kueue.workload("digits")["metadata"]
    kueue.set_queue(QUEUE, 0)
    kueue.evict("digits")
    status = until_admission(space, "Preempted", "Evicted: Preempted")
    assert status["phase"] == "Suspending"
    assert condition(status, "Running")["reason"] == "Evicted"

    def are_asked(pods: list[dict[str, Any]]) -> bool:
        return all(pod["metadata"].get("deletionGracePeriodSeconds", 0) > 0 for pod in pods)

    eventually(space.pods, are_asked, "each rank has time to save")
    kubelet.stop(GANG[0])
    space.delete("pods", GANG[1], gracePeriodSeconds=0)
    space.until_pods(GANG[0])
    throughout(lambda: kueue.workload("digits"), holds_quota, "quota is held while one pod is left", 1.0)
    kubelet.release()
    kueue.until("digits", lambda found: not holds_quota(found), "its quota is given back")
    space.until_phase("Queued")
    kueue.set_queue(QUEUE, 2)
    status = space.until_started(attempt=1)
    assert (status["restarts"], [one["reason"] for one in status["attempts"]]) == (0, ["Evicted"])
    after = kueue.workload("digits")["metadata"]
    assert (after["uid"], after["creationTimestamp"]) == (before["uid"], before["creationTimestamp"])
    assert space.status("later")["phase"] == "Queued", "the older job is first, because it kept its place"
    command = space.get("configmaps", space.config_map(1))["data"]
    assert command, "the next gang has its config"
    assert kueue.counts()["releases"] == 1


def test_a_job_of_higher_priority_takes_the_place(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    kinds.add_priority_class(control_plane, "high", 1000)
    space.create(queued(job()))
    space.until_started()
    space.create(queued(job("urgent"), priority="high"))
    space.until_started(job="urgent")
    assert kueue.workload("urgent")["spec"]["priority"] == 1000
    space.until_phase("Queued")
    kubelet.succeed("urgent-base-0-0", "urgent-base-0-1")
    assert space.until_started(attempt=1)["restarts"] == 0


def test_an_unknown_priority_class(control_plane: ControlPlane, space: Space, kueue: Kueue) -> None:
    space.create(queued(job(), priority=space.namespace))
    until_admission(space, "PriorityUnknown", space.namespace)
    assert kueue.workload("digits") == {}
    kinds.add_priority_class(control_plane, space.namespace, 7)
    space.until_started()
    assert kueue.workload("digits")["spec"]["priority"] == 7


def test_a_restarted_gang_keeps_workload_and_quota(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job()))
    before = kueue.until("digits", is_ready("True", "Started"), "its ranks run")
    space.until_started()
    kubelet.starts = False
    kubelet.exit(GANG[1], 137)
    lost = kueue.until("digits", is_ready("False", "WaitForRecovery"), "a rank is lost")
    assert holds_quota(lost)
    space.until_pods(*NEXT_GANG)
    kubelet.starts = True
    kubelet.release()
    after = kueue.until("digits", is_ready("True", "Recovered"), "its ranks run again")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (space.until_started(attempt=1)["restarts"], kueue.counts()["releases"]) == (1, 0)


def test_the_end_of_a_job_is_that_of_its_workload(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job(failurePolicy={"maxRestarts": 0, "backoffSeconds": 0})))
    space.until_started()
    kubelet.exit(GANG[1], 137)
    space.until_phase("Failed")
    finished = workload_condition(kueue.until_reason("digits", "Finished", "Failed"), "Finished")
    assert finished["message"] == condition(space.status(), "Failed")["message"]


def test_a_suspended_job_leaves_the_queue(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job()))
    space.until_started()
    before = kueue.workload("digits")["metadata"]["uid"]
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspended")
    eventually(kueue.workloads, lambda found: found == [], "its Workload is gone")
    until_admission(space, "Suspended")
    space.change("digits", runPolicy={"suspend": False})
    space.until_started(attempt=1)
    assert kueue.workload("digits")["metadata"]["uid"] != before


def test_a_job_deleted_while_it_waits_leaves_nothing(space: Space, kueue: Kueue) -> None:
    kueue.set_queue(QUEUE, 0)
    space.create(queued(job()))
    until_admission(space, "WaitingForQuota")
    space.delete(JOB, "digits")
    eventually(kueue.workloads, lambda found: found == [], "its Workload is gone")


def test_a_workload_that_a_stranger_deletes_is_made_anew(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job()))
    space.until_started()
    kubelet.ends = False
    before = kueue.workload("digits")["metadata"]["uid"]
    kueue.allow_early_end()
    kueue.remove("digits")
    status = until_admission(space, "WorkloadDeleted", "once its pods have stopped")
    assert status["phase"] == "Suspending"
    assert kueue.workloads() == [], "pods of the old one still run"
    kubelet.release()
    assert space.until_started(attempt=1)["restarts"] == 0
    assert kueue.workload("digits")["metadata"]["uid"] != before


def test_a_workload_that_kueue_finished_is_made_anew(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job()))
    space.until_started()
    before = kueue.workload("digits")["metadata"]["uid"]
    kueue.allow_early_end()
    kueue.finish("digits", "OwnerNotFound")
    assert space.until_started(attempt=1)["restarts"] == 0
    assert kueue.workload("digits")["metadata"]["uid"] != before


def test_a_queue_that_does_not_exist(space: Space, kueue: Kueue) -> None:
    space.create(queued(job(), "nowhere"))
    status = until_admission(space, "Inadmissible", "LocalQueue nowhere doesn't exist")
    assert status["phase"] == "Queued"
    before = kueue.workload("digits")["metadata"]["uid"]
    relabel(space, QUEUE)
    space.until_started()
    assert kueue.workload("digits")["metadata"]["uid"] == before, "a job that waits moves with its age"


def test_another_queue_while_admitted(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    kueue.set_queue("team-b", 2)
    space.create(queued(job()))
    space.until_started()
    relabel(space, "team-b")
    status = until_admission(space, "QueueChanged", "suspend the job to move it")
    assert is_true(status, "Admitted")
    assert kueue.workload("digits")["spec"]["queueName"] == QUEUE
    assert len(kubelet.seen) == 2, "the gang runs on"
    space.change("digits", runPolicy={"suspend": True})
    space.until_phase("Suspended")
    space.change("digits", runPolicy={"suspend": False})
    space.until_started(attempt=1)
    assert kueue.workload("digits")["spec"]["queueName"] == "team-b"


def test_a_deactivated_workload_stops_the_gang_until_it_is_active(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.create(queued(job()))
    space.until_started()
    kueue.activate("digits", False)
    status = space.until_phase("Queued")
    assert status["attempt"] == 1
    kueue.until_reason("digits", "QuotaReserved", "Deactivated")
    until_admission(space, "Deactivated")
    kueue.activate("digits", True)
    space.until_started(attempt=1)
    assert kueue.counts()["releases"] == 1


def test_pods_that_kueue_takes_for_jobs_of_their_own(
    control_plane: ControlPlane, space: Space, kubelet: Kubelet, kueue: Kueue
) -> None:
    with webhook.gating(control_plane, space.namespace):
        space.create(queued(job()))

        def is_said(status: dict[str, Any]) -> bool:
            return condition(status, "Running").get("reason") == "GatedByKueue"

        status = space.until(is_said, "Running has the reason GatedByKueue")
    message = condition(status, "Running")["message"]
    assert "2/2 pods" in message
    assert "ResNetBoostJob.v1alpha1.resnetboost.io" in message


def test_a_job_without_a_queue_runs_at_once(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    kueue.allow_without_queue()
    space.create(job())
    status = space.until_started()
    assert condition(status, "Admitted") == {}
    assert kueue.workloads() == []


def test_stages_give_back_what_the_rest_does_not_need(space: Space, kubelet: Kubelet, kueue: Kueue) -> None:
    space.add_claim(CLAIM)
    kueue.set_queue(QUEUE, 4)
    stages = job(stages=("base", "fine"), ranks=4)
    stages["spec"]["stages"][1]["deviceCount"] = 2
    space.create(queued(stages))
    space.until_started()
    kubelet.succeed(*(f"digits-base-0-{index}" for index in range(4)))
    space.until_started(attempt=1)
    kueue.until("digits", lambda found: found["status"].get("reclaimablePods"), "the quota of two pods is given back")
    assert kueue.workload("digits")["status"]["reclaimablePods"] == [{"name": "ranks", "count": 2}]
    space.create(queued(job("other")))
    space.until_started(job="other")
