"""Planning for cluster incidents: lost nodes, evictions, rejected pods, time to live."""

import contextlib
import copy
from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.status import Condition
from resnetboost_operator import status
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import timestamp
from resnetboost_operator.observed.state import Obstacle
from resnetboost_operator.planning.collection_delete import group
from support.simulation import Cluster, Crash, job


def with_nodes(cluster: Cluster) -> Cluster:
    cluster.nodes = {name: NodeView(name, ready=True) for name in ("node-0", "node-1")}
    return cluster


def fall_silent(cluster: Cluster, node: str) -> None:
    cluster.nodes[node] = NodeView(node, ready=False, silent_since=cluster.now)


def test_a_lost_node_restarts_the_gang_without_using_the_budget() -> None:
    cluster = with_nodes(Cluster(job(failurePolicy={"maxRestarts": 0}))).started()
    fall_silent(cluster, "node-1")
    assert cluster.step().wake_seconds == 30
    assert cluster.status.restarts == 0
    cluster.now += 30
    wanted = cluster.step()
    record = cluster.status.attempts[0]
    assert (record.reason, record.rank, record.node) == ("PodLost", 1, "node-1")
    assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (1, 0)
    graces = {deletion.name: deletion.grace_seconds for deletion in wanted.delete}
    assert graces == {"digits-base-0-0": 5, "digits-base-0-1": 0}, "nobody waits for the lost node's kubelet"


def test_a_node_that_comes_back_soon_causes_no_restart() -> None:
    cluster = with_nodes(Cluster(job())).started()
    fall_silent(cluster, "node-1")
    cluster.now += 29
    cluster.step()
    cluster.nodes["node-1"] = NodeView("node-1", ready=True)
    cluster.now += 60
    cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts) == ("Running", 0)


def test_a_communication_error_waits_for_a_lost_node() -> None:
    cluster = with_nodes(Cluster(job(failurePolicy={"maxRestarts": 0}))).started()
    cluster.exit(0, 14, report={"class": "CommunicationError"})
    assert cluster.step().wake_seconds == 60
    cluster.now += 50
    fall_silent(cluster, "node-1")
    cluster.step()
    assert cluster.status.attempts[0].reason == "PodLost"
    assert cluster.status.restarts_count_towards_max == 0


def test_old_pods_on_a_lost_node_do_not_hold_up_the_new_gang() -> None:
    cluster = with_nodes(Cluster(job(failurePolicy={"backoffSeconds": 0}))).started()
    cluster.exit(0, 137)
    cluster.step()
    fall_silent(cluster, "node-1")
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if not name.endswith("-0-0")}  # kubelet 0 is faster
    cluster.step()
    assert sorted(cluster.pods) == ["digits-base-0-1", "digits-base-1-0"], "each index waits for its own predecessor"
    cluster.now += 30
    cluster.step()
    cluster.step()
    assert sorted(cluster.pods) == ["digits-base-1-0", "digits-base-1-1"]


@pytest.mark.parametrize("reason", ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager"])
def test_a_disruption_is_named_and_not_counted_whatever_the_exit_code(reason: str) -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 0})).started()
    cluster.exit(1, 137)
    cluster.exit(0, 14, report={"class": "CommunicationError"})
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    cluster.rank(1)["status"]["conditions"] = [condition]
    cluster.settle()
    record = cluster.status.attempts[0]
    assert (record.reason, record.rank, record.message) == ("Disrupted", 1, reason)
    assert (cluster.status.phase, cluster.status.restarts_count_towards_max) == ("Starting", 0)


def delete(cluster: Cluster, index: int) -> None:
    """Delete a pod as kubectl does: kubelet has yet to stop it."""
    cluster.rank(index)["metadata"]["deletionTimestamp"] = timestamp(cluster.now)


@pytest.mark.parametrize("gone", [False, True], ids=["still there", "gone"])
@pytest.mark.parametrize(
    ("code", "words"),
    [(137, ""), (143, ""), (14, "CommunicationError"), (16, "Interrupted"), (1, "InternalError"), (15, "StorageError")],
    ids=str,
)
def test_a_rank_that_was_deleted_is_a_disruption_whatever_its_exit_code(code: int, words: str, gone: bool) -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 0})).started()
    delete(cluster, 1)
    cluster.exit(1, code, report={"class": words, "message": "bye"})
    if gone:
        cluster.finish_deletions()
    cluster.settle()
    record = cluster.status.attempts[0]
    assert (record.reason, record.rank, record.exit_code) == ("Disrupted", 1, code)
    assert record.message == "the pod was deleted: bye"
    assert (cluster.status.phase, cluster.status.restarts_count_towards_max) == ("Starting", 0)


def test_an_error_in_the_job_is_one_also_when_its_rank_was_deleted() -> None:
    cluster = Cluster(job()).started()
    delete(cluster, 1)
    cluster.exit(1, 10, report={"class": "ConfigError", "message": "no"})
    cluster.settle()
    assert cluster.status.phase == "Failed"


def test_ranks_that_blame_a_terminating_rank_are_no_failure() -> None:
    cluster = with_nodes(Cluster(job(failurePolicy={"maxRestarts": 0}))).started()
    delete(cluster, 1)
    cluster.exit(0, 14, report={"class": "CommunicationError"})
    assert cluster.step().wake_seconds == 60, "its end may still be reported"
    cluster.now += 60
    cluster.step()
    record = cluster.status.attempts[0]
    assert (record.reason, record.rank, cluster.status.restarts_count_towards_max) == ("Disrupted", 1, 0)


def test_a_rank_that_fails_while_it_saves_for_a_suspension_is_on_record() -> None:
    cluster = Cluster(job()).started()
    policy = replace(cluster.job.spec.run_policy, suspend=True)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))
    cluster.step()
    cluster.exit(0, 15, report={"class": "StorageError", "message": "disk full"})
    cluster.settle()
    record = cluster.status.attempts[0]
    assert (record.reason, record.message, cluster.status.phase) == ("StorageError", "disk full", "Suspended")


def told_by_the_scheduler(cluster: Cluster, words: str) -> Condition:
    """What the job says of pods that the scheduler cannot place for that reason."""
    cluster.settle()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    for pod in cluster.gang():
        pod["status"]["conditions"] = [condition]
    cluster.settle()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    return running


def test_a_scheduling_failure_has_the_schedulers_message() -> None:
    words = "0/3 nodes are available: 3 Insufficient cpu."
    running = told_by_the_scheduler(Cluster(job()), words)
    assert (running.reason, running.message) == ("Unschedulable", f"0/2 ranks are scheduled: {words}")


def test_a_label_that_the_job_asks_for_is_named_where_no_node_has_it() -> None:
    words = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    running = told_by_the_scheduler(Cluster(job(template={"nodeSelector": {"disk": "ssd"}})), words)
    assert running.message.endswith("; template.nodeSelector asks for nodes with disk=ssd")


def waiting_for(cluster: Cluster, reason: str, message: str) -> None:
    for pod in cluster.gang():
        pod["spec"]["nodeName"] = "node-0"
        state = {"waiting": {"reason": reason, "message": message}}
        pod["status"]["containerStatuses"] = [{"name": names.CONTAINER, "ready": False, "state": state}]


def test_a_failing_image_pull_fails_the_job_at_the_startup_deadline() -> None:
    cluster = Cluster(job(runPolicy={"startupDeadlineSeconds": 60}))
    cluster.settle()
    waiting_for(cluster, "ImagePullBackOff", "Back-off pulling image x")
    cluster.settle()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert running.message == "2/2 ranks wait for kubelet: ImagePullBackOff: Back-off pulling image x"
    cluster.now += 60
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "ImageError"
    assert "correct template.image" in failed.message


def test_an_invalid_image_name_fails_the_job_at_once() -> None:
    cluster = Cluster(job())
    cluster.settle()
    waiting_for(cluster, "InvalidImageName", "couldn't parse image name")
    cluster.settle()
    assert cluster.status.phase == "Failed"


def test_a_gang_that_waits_has_one_warning_for_each_reason() -> None:
    cluster = Cluster(job())
    cluster.obstacle = Obstacle("exceeded quota: compute")
    cluster.settle()
    cluster.settle()
    assert cluster.events.count("PodsRefused") == 1
    cluster.obstacle = None
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has room"}
    for pod in cluster.gang():
        pod["status"]["conditions"] = [condition]
    wanted = cluster.step()
    assert [(event.type, event.reason) for event in wanted.events] == [("Warning", "Unschedulable")]
    assert "no node has room" in wanted.events[0].message
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waiting_for(cluster, reason, "no such image")
        cluster.settle()
    assert cluster.events.count("ErrImagePull") + cluster.events.count("ImagePullBackOff") == 1
    assert cluster.events.count("Unschedulable") == 1
    cluster.started()
    assert cluster.events.count("Starting") == cluster.events.count("Training") == 0


@pytest.mark.parametrize(
    ("limits", "code", "report", "said"),
    [
        ({"memory": "2Gi"}, 137, None, "template.resources.limits.memory is 2Gi; raise it, or lower localBatchSize"),
        ({}, 137, None, "template.resources.limits.memory is not set: the limit is its node's"),
        (
            {"memory": "2Gi"},
            13,
            {"class": "OutOfMemory", "message": "alloc"},
            "alloc; template.resources.limits.memory is",
        ),
    ],
    ids=["killed at its limit", "killed without a limit", "it says so itself"],
)
def test_out_of_memory_names_the_limit_and_the_remedy(
    limits: dict[str, str], code: int, report: dict[str, Any] | None, said: str
) -> None:
    cluster = Cluster(job(template={"resources": {"limits": limits}})).started()
    cluster.exit(1, code, "OOMKilled" if code == 137 else "Error", report=report)
    wanted = cluster.step()
    assert cluster.status.attempts[0].reason == "OutOfMemory"
    assert said in cluster.status.attempts[0].message
    assert said in wanted.events[0].message


def test_an_invalid_pod_fails_the_job_with_the_api_servers_message() -> None:
    cluster = Cluster(job())
    cluster.step()
    cluster.pods.clear()
    words = f'Pod "digits-base-0-0" is invalid: spec.containers[0].{"x" * 400}: must be less than the limit'
    cluster.obstacle = Obstacle(words, permanent=True)
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "InvalidPod"
    assert words in failed.message
    assert (cluster.status.phase, cluster.status.restarts, cluster.pods) == ("Failed", 0, {})


def keep_out_the_next_gang(cluster: Cluster) -> None:
    """The next gang is planned, and none of its pods is admitted."""
    while "digits-base-1-0" not in cluster.pods:
        cluster.step()
        cluster.finish_deletions()
    cluster.pods.clear()


def test_invalid_pods_of_a_job_that_has_trained_are_retried() -> None:
    """The job's own pods were valid before, so an injector or a LimitRange is the cause and may be fixed."""
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.exit(1, 137)
    keep_out_the_next_gang(cluster)
    words = 'Pod "digits-base-1-0" is invalid: spec.containers[1].name: Required value'
    cluster.obstacle = Obstacle(words, permanent=True)
    cluster.step()
    assert (cluster.status.phase, running(cluster).reason) == ("Starting", "PodsRefused")
    cluster.obstacle = None
    cluster.settle()
    cluster.run_all()
    cluster.train_to(1, 0)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts) == ("Running", 1)


def test_a_blocked_gang_after_an_unreachable_one_has_its_own_reason() -> None:
    limits = {"runPolicy": {"startupDeadlineSeconds": 60}, "failurePolicy": {"backoffSeconds": 0}}
    cluster = unheard(Cluster(job(**limits)))
    cluster.exit(0, 1)
    keep_out_the_next_gang(cluster)
    cluster.obstacle = Obstacle("exceeded quota: compute")
    cluster.now += 60
    cluster.step()
    assert (
        "0/2 pods exist, the others cannot be created: exceeded quota: compute" in cluster.status.attempts[-1].message
    )


def test_a_refusal_of_the_api_server_is_reported() -> None:
    cluster = Cluster(job())
    cluster.obstacle = Obstacle("exceeded quota: compute")
    cluster.settle()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert (running.reason, running.message.endswith("exceeded quota: compute")) == ("PodsRefused", True)


def test_a_partly_admitted_gang_meets_the_startup_deadline() -> None:
    cluster = Cluster(job(runPolicy={"startupDeadlineSeconds": 60}))
    cluster.step()
    cluster.obstacle = Obstacle("exceeded quota: compute")
    del cluster.pods["digits-base-0-1"]
    cluster.now += 60
    cluster.step()
    record = cluster.status.attempts[0]
    assert record.reason == "NotScheduled"
    assert "exceeded quota" in record.message
    assert cluster.status.restarts_count_towards_max == 0, "waiting for room is nobody's failure"


def test_a_rank_that_fails_before_the_gang_is_whole_ends_the_attempt() -> None:
    cluster = Cluster(job())
    cluster.step()
    del cluster.pods["digits-base-0-1"]
    cluster.exit(0, 10, report={"class": "ConfigError", "message": "no"})
    cluster.settle()
    assert cluster.status.phase == "Failed"


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("Running", ["digits-base-0-0"]),
        ("All", []),
        ("None", ["digits-base-0-0", "digits-base-0-1"]),
    ],
    ids=str,
)
def test_clean_pod_policy_says_what_a_failed_job_leaves(policy: str, left: list[str]) -> None:
    cluster = Cluster(job(runPolicy={"cleanPodPolicy": policy})).started()
    cluster.exit(0, 10, report={"class": "ConfigError"})
    cluster.settle()
    assert sorted(cluster.pods) == left


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    cluster = Cluster(job(runPolicy={"ttlSecondsAfterFinished": 100})).started()
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.step()
    cluster.now += 40
    assert cluster.step().wake_seconds == 60
    assert not cluster.expired
    cluster.now += 60
    cluster.step()
    assert cluster.expired


def test_config_maps_and_services_of_earlier_attempts_go_when_the_next_one_comes() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0}))
    assert cluster.step().obsolete == ""
    cluster.started()
    cluster.exit(0, 137)
    cluster.step()
    cluster.finish_deletions()
    assert cluster.step().obsolete == "resnetboost.io/job-uid=0000-1111,resnetboost.io/attempt!=1"
    assert cluster.step().obsolete == ""


def test_a_restart_of_a_whole_gang_is_one_delete_request() -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 8})).started()
    cluster.exit(3, 137)
    views = [pods.view(pod) for pod in cluster.pods.values()]
    requests, singles = group(cluster.plan().delete, views)
    assert ([len(request.pods) for request in requests], singles) == ([8], [])


def test_an_ended_pod_that_goes_while_a_running_one_stays_is_deleted_by_its_uid() -> None:
    """A request can leave ended pods out, or name those that stay, but not both."""
    cluster = Cluster(job(device={"type": "CPU", "count": 4})).started()
    cluster.exit(3, 137)
    views = [pods.view(pod) for pod in cluster.pods.values()]
    going = [one for one in cluster.plan().delete if one.uid != views[0].uid]
    requests, singles = group(going, views)
    assert (requests, singles) == ([], going)


def test_a_gang_of_one_rank_is_deleted_by_its_pods_own_uid() -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 1})).started()
    cluster.exit(0, 137)
    requests, singles = group(cluster.plan().delete, [pods.view(pod) for pod in cluster.pods.values()])
    assert (requests, [one.uid for one in singles]) == ([], ["uid-1"])


def test_the_termination_message_of_a_deleted_pod_is_recorded() -> None:
    """Kubelet records the exit and removes the pod within milliseconds; the watch may report both in one event."""
    cluster = Cluster(job(failurePolicy={"maxRestarts": 0})).started()
    cluster.rank(1)["metadata"]["deletionTimestamp"] = timestamp(cluster.now)
    cluster.exit(1, 16, report={"class": "Interrupted", "step": 33, "checkpointStep": 33})
    cluster.finish_deletions()
    assert [deletion.grace_seconds for deletion in cluster.step().delete] == [60], "rank 0 may still be saving"
    record = cluster.status.attempts[0]
    assert (record.reason, record.exit_code, record.checkpoint_step) == ("Disrupted", 16, 33)
    assert cluster.status.restarts_count_towards_max == 0


def test_the_wait_for_a_blamed_rank_uses_the_operators_clock() -> None:
    """Kubelet's clock may differ by hours."""
    cluster = with_nodes(Cluster(job())).started()
    cluster.now += 3600
    cluster.exit(0, 14, report={"class": "CommunicationError"})
    cluster.now -= 3600
    cluster.step()
    cluster.now += 59
    assert (cluster.step().wake_seconds, cluster.status.restarts) == (1, 0)
    cluster.now += 1
    cluster.step()
    assert cluster.status.attempts[0].reason == "CommunicationError"


def unheard(cluster: Cluster) -> Cluster:
    """All ranks run; rank 0 cannot be polled, and its readiness probe has not succeeded yet."""
    cluster.settle()
    cluster.run_all()
    cluster.hear(ready=False)
    cluster.unreachable = True
    cluster.settle()
    return cluster


def running(cluster: Cluster) -> Condition:
    found = status.condition(cluster.status, "Running")
    assert found is not None
    return found


def test_an_unreachable_gang_does_not_count_as_hung() -> None:
    cluster = unheard(Cluster(job(runPolicy={"startupDeadlineSeconds": 60}, failurePolicy={"hangTimeoutSeconds": 30})))
    cluster.now += 119
    cluster.settle()
    assert (running(cluster).reason, cluster.status.phase, cluster.status.restarts) == (
        "RankUnreachable",
        "Starting",
        0,
    )
    assert "allow ingress" in running(cluster).message
    cluster.unreachable = False
    cluster.settle()
    assert cluster.status.attempts[0].reason == "StartupDeadlineExceeded"


def test_an_unreachable_gang_has_twice_the_startup_deadline() -> None:
    cluster = unheard(Cluster(job(runPolicy={"startupDeadlineSeconds": 60}, failurePolicy={"backoffSeconds": 0})))
    assert cluster.plan().wake_seconds == 120
    cluster.now += 120
    cluster.settle()
    record = cluster.status.attempts[0]
    assert record.reason == "StartupDeadlineExceeded"
    assert "cannot connect to port 9400 of rank 0" in record.message


def test_readiness_of_an_unreachable_rank_counts_as_training() -> None:
    cluster = unheard(Cluster(job(runPolicy={"startupDeadlineSeconds": 60})))
    cluster.hear(ready=True)
    cluster.settle()
    assert (cluster.status.phase, running(cluster).status, running(cluster).reason) == (
        "Running",
        "True",
        "TrainingUnheard",
    )
    assert "allow ingress" in running(cluster).message
    cluster.now += 86400
    cluster.settle()
    assert cluster.status.restarts == 0
    cluster.exit(1, 0)
    cluster.settle()
    assert cluster.status.restarts == 0, "the others end a moment later"
    cluster.exit(0, 0)
    cluster.settle()
    assert cluster.status.phase == "Complete"


def test_an_unreachable_rank_that_is_not_ready_hangs() -> None:
    cluster = unheard(Cluster(job(failurePolicy={"hangTimeoutSeconds": 30})))
    cluster.hear(ready=True)
    cluster.settle()
    cluster.hear(ready=False)
    cluster.settle()
    cluster.now += 59
    cluster.hear(ready=True)  # after a restart, kubelet reports every container as not ready at first
    cluster.settle()
    cluster.hear(ready=False)
    cluster.settle()
    cluster.now += 59
    cluster.settle()
    assert cluster.status.restarts == 0
    cluster.now += 1
    cluster.step()
    record = cluster.status.attempts[0]
    assert (record.reason, cluster.status.restarts_count_towards_max) == ("Hang", 1)
    assert record.message == "rank 0 reported no step to its kubelet for hangTimeoutSeconds: 30"


def test_an_unreachable_deleted_rank_does_not_hang() -> None:
    cluster = unheard(Cluster(job(failurePolicy={"maxRestarts": 0})))
    cluster.hear(ready=True)
    cluster.settle()
    cluster.hear(ready=False)
    delete(cluster, 0)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts_count_towards_max) == ("Starting", 0)


def test_only_rank_0_has_a_readiness_probe_of_the_hang_timeout() -> None:
    cluster = Cluster(job(failurePolicy={"hangTimeoutSeconds": 65}))
    cluster.step()
    first, second = (cluster.rank(index)["spec"]["containers"][0] for index in (0, 1))
    probe = first["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 70
    assert probe["httpGet"] == {"path": names.PATH_TRAINING, "port": first["ports"][0]["name"]}
    assert [key for key in (*first, *second) if key.endswith("Probe")] == ["readinessProbe"], "nothing kills a rank"


@pytest.mark.parametrize("crash", [False, True], ids=["undisturbed", "operator killed behind the status write"])
def test_ranks_may_save_when_the_active_deadline_is_over(crash: bool) -> None:
    cluster = Cluster(job(runPolicy={"activeDeadlineSeconds": 100})).started()
    cluster.now += 100
    if crash:
        with contextlib.suppress(Crash):
            cluster.step(crash_after=1)
    assert {deletion.grace_seconds for deletion in cluster.plan().delete} == {60}


def test_failures_before_the_active_deadline_are_recorded() -> None:
    cluster = Cluster(job(runPolicy={"activeDeadlineSeconds": 100})).started()
    cluster.exit(1, 10, report={"class": "ConfigError", "message": "no"})
    cluster.now += 200
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "ConfigError"


def test_a_pod_that_kubelet_rejects_is_no_failure_of_the_gang() -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 0})).started()
    cluster.rank(1)["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}
    cluster.step()
    record = cluster.status.attempts[0]
    assert (record.reason, record.exit_code, record.message) == (
        "Rejected",
        None,
        "UnexpectedAdmissionError: no device",
    )
    assert cluster.status.restarts_count_towards_max == 0


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("", ("PodLost", "the pod is gone and left no exit code: it was deleted, or its node was")),
        ("EvictionByEvictionAPI", ("Disrupted", "EvictionByEvictionAPI")),
    ],
    ids=["lost", "evicted"],
)
def test_a_pod_without_an_exit_code_has_its_reason(reason: str, expected: tuple[str, str]) -> None:
    cluster = Cluster(job()).started()
    if reason:
        cluster.rank(1)["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    cluster.tombstones.append(pods.view(cluster.rank(1)))
    cluster.vanish(1)
    cluster.step()
    record = cluster.status.attempts[0]
    assert (record.reason, record.message) == expected


def test_an_unrequested_exit_uses_the_budget() -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 0})).started()
    for index in (0, 1):
        cluster.exit(index, 16, report={"class": "Interrupted"})
    cluster.settle()
    assert cluster.status.phase == "Failed"


def test_a_long_run_that_is_evicted_once_restarts_at_once() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 500})).started()
    cluster.now += 5000
    cluster.train_to(9)
    cluster.vanish(1)
    assert cluster.step().wake_seconds == 0


def test_failures_at_unknown_steps_are_not_the_same_step() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0}))
    for _ in range(2):
        cluster.settle()
        cluster.run_all()
        cluster.exit(0, 1, report={"class": "InternalError"})
        cluster.settle()
    assert (cluster.status.phase, cluster.status.restarts) == ("Starting", 2)


def test_pods_on_a_lost_node_are_deleted_after_the_jobs_end() -> None:
    cluster = with_nodes(Cluster(job())).started()
    cluster.exit(0, 10, report={"class": "ConfigError"})
    cluster.step()
    fall_silent(cluster, "node-1")
    assert cluster.step().wake_seconds == 30
    cluster.now += 30
    cluster.step()
    assert sorted(cluster.pods) == ["digits-base-0-0"]


def test_an_absurd_step_time_is_harmless() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(10, checkpoint_step=10)
    assert cluster.progress is not None
    cluster.progress = replace(cluster.progress, step_seconds=1e30)
    cluster.exit(0, 137)
    cluster.settle()
    assert cluster.status.goodput is not None


def test_goodput_lists_losses_by_cause() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(120, checkpoint_step=100)
    assert cluster.progress is not None
    cluster.progress = replace(cluster.progress, step_seconds=0.5)
    cluster.now += 100
    cluster.exit(1, 137)
    cluster.step()
    account = cluster.status.goodput
    assert account is not None
    assert (account.attempt_seconds, account.productive_seconds, account.percent) == (100, 50, 50)
    assert account.repeated_steps == 20
    # 20 steps of half a second, for two ranks; the rest was before the only report.
    causes = {(loss.reason, loss.failure): loss.device_seconds for loss in account.lost}
    assert causes.pop(("Replay", "Killed")) == 20
    assert sum(causes.values()) == 80


def test_only_phase_changes_are_written_at_once() -> None:
    cluster = Cluster(job()).started()
    before = cluster.status
    cluster.train_to(7)
    assert not status.is_urgent(before, cluster.plan().status)
    cluster.exit(1, 137)
    assert status.is_urgent(before, cluster.plan().status)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"ownerReferences": []}, "no owner"), ({"name": "digits-base-0-0x"}, "not named as its labels say")],
    ids=["nobody's", "named otherwise"],
)
def test_a_pod_that_only_looks_like_ours_is_refused(changes: dict[str, Any], complaint: str) -> None:
    cluster = Cluster(job())
    cluster.step()
    pod = cluster.rank(0)
    pod["metadata"] |= changes
    with pytest.raises(ValueError, match=complaint):
        pods.view(pod)


def test_a_rank_beyond_the_job_does_not_count() -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 1})).started()
    forged = copy.deepcopy(cluster.rank(0))
    forged["metadata"]["labels"][names.LABEL_INDEX] = "99"
    forged["metadata"] |= {"name": "digits-base-0-99", "uid": "forged"}
    forged["status"]["phase"] = "Succeeded"
    cluster.pods["digits-base-0-99"] = forged
    cluster.step()
    assert cluster.status.phase == "Running"


def test_pods_that_share_a_node_have_affinity_and_anti_affinity() -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 4, "perNode": 2}))
    cluster.step()
    groups = [cluster.rank(index)["metadata"]["labels"][names.LABEL_NODE_GROUP] for index in range(4)]
    assert groups == ["0", "0", "1", "1"]
    affinity = cluster.rank(2)["spec"]["affinity"]
    (near,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (far,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["labelSelector"]["matchLabels"][names.LABEL_NODE_GROUP] == "1"
    assert far["labelSelector"]["matchExpressions"] == [
        {"key": names.LABEL_NODE_GROUP, "operator": "NotIn", "values": ["1"]}
    ]
