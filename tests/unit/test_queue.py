"""A job with a queue of Kueue: what it asks for, when its pods come and go, when it gives quota back."""

from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.status import Condition
from resnetboost_operator import status
from resnetboost_operator.job import Job
from resnetboost_operator.observed import flavor
from resnetboost_operator.observed.capabilities import VOLCANO, Capabilities
from support.simulation import Cluster, job

KUEUE = Capabilities(kueue=True, kueue_enabled=True)
SPOT = flavor.view(
    {"spec": {"nodeLabels": {"example.com/kind": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}}
)
STAGES = [
    {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8, "deviceCount": 3},
    {"name": "fine", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8, "deviceCount": 2},
]


def queued(queue: str = "team-a", **spec: Any) -> Cluster:
    """A job with the label of a queue, in a cluster with Kueue."""
    cluster = Cluster(replace(job(**spec), queue=queue))
    cluster.capabilities, cluster.flavors = KUEUE, {"spot": SPOT}
    return cluster


def running(**spec: Any) -> Cluster:
    """That job, admitted and training."""
    cluster = queued(**spec)
    cluster.settle()
    cluster.kueue.admit()
    return cluster.started()


def condition(cluster: Cluster, kind: str = "Admitted") -> Condition:
    found = status.condition(cluster.status, kind)
    assert found is not None
    return found


def labelled(cluster: Cluster, queue: str) -> None:
    cluster.job = replace(cluster.job, queue=queue)


def suspend(cluster: Cluster, value: bool) -> None:
    policy = replace(cluster.job.spec.run_policy, suspend=value)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))


def metadata_of_pods(cluster: Cluster) -> list[dict[str, Any]]:
    return [pod["metadata"] for pod in cluster.pods.values()]


class TestWaiting:
    def test_a_job_with_a_queue_asks_for_quota_for_all_its_ranks_and_creates_nothing_else(self) -> None:
        cluster = queued()
        cluster.settle()
        assert cluster.kueue.writes == ["create"]
        workload = cluster.kueue.workload
        assert workload is not None
        assert workload["spec"]["queueName"] == "team-a"
        assert workload["spec"]["podSets"][0]["count"] == 2
        owner = workload["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (names.KIND, "0000-1111", True)
        assert workload["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == "0000-1111"
        assert (cluster.pods, cluster.config_maps, cluster.status.phase) == ({}, {}, "Queued")

    def test_the_queues_own_words_are_shown(self) -> None:
        cluster = queued()
        cluster.settle()
        cluster.kueue.refuse("2 more needed")
        cluster.settle()
        found = condition(cluster)
        assert (found.status, found.reason, found.message) == ("False", "WaitingForQuota", "2 more needed")
        assert condition(cluster, "Running").message == "2 more needed"

    def test_no_deadline_runs_while_a_job_waits(self) -> None:
        cluster = queued(runPolicy={"activeDeadlineSeconds": 100, "startupDeadlineSeconds": 60})
        cluster.settle()
        cluster.now += 100_000
        assert cluster.step().wake_seconds is None
        assert (cluster.status.start_time, cluster.status.attempt_creation_time) == (None, None)
        cluster.kueue.admit()
        cluster.settle()
        assert cluster.status.attempt_creation_time == cluster.status.start_time is not None
        assert (cluster.status.phase, len(cluster.pods)) == ("Starting", 2)

    def test_quota_without_its_admission_checks_is_not_enough(self) -> None:
        cluster = queued()
        cluster.settle()
        cluster.kueue.reserve()
        assert cluster.kueue.workload is not None
        check = {"name": "nodes", "state": "Pending", "message": "a node pool is being provisioned"}
        cluster.kueue.workload["status"]["admissionChecks"] = [check]
        cluster.settle()
        assert cluster.pods == {}
        assert "nodes: a node pool is being provisioned" in condition(cluster).message

    def test_pods_wait_until_their_flavor_is_known(self) -> None:
        cluster = queued()
        cluster.flavors = {}
        cluster.settle()
        cluster.kueue.admit()
        cluster.settle()
        assert cluster.pods == {}
        assert "spot" in condition(cluster, "Running").message
        assert cluster.plan().wake_seconds is not None, "nothing else would look again"
        cluster.flavors = {"spot": SPOT}
        cluster.settle()
        assert len(cluster.pods) == 2

    def test_a_waiting_job_moves_to_another_queue_and_keeps_its_age(self) -> None:
        cluster = queued()
        cluster.settle()
        assert cluster.kueue.workload is not None
        created = cluster.kueue.workload["metadata"]["creationTimestamp"]
        labelled(cluster, "team-b")
        cluster.settle()
        assert cluster.kueue.workload["spec"]["queueName"] == "team-b"
        assert cluster.kueue.workload["metadata"]["creationTimestamp"] == created

    def test_without_its_label_a_waiting_job_runs_as_one_without_a_queue(self) -> None:
        cluster = queued()
        cluster.settle()
        labelled(cluster, "")
        cluster.settle()
        assert (cluster.kueue.workload, len(cluster.pods)) == (None, 2)
        assert status.condition(cluster.status, "Admitted") is None

    def test_a_gang_that_no_scheduler_can_start_asks_for_no_quota(self) -> None:
        cluster = queued(scheduling={"schedulingPolicy": {"gang": {}}})
        cluster.settle()
        assert (cluster.kueue.workload, condition(cluster, "Running").reason) == (None, "NoGangScheduler")

    @pytest.mark.parametrize("admitted", [False, True], ids=["waits", "admitted"])
    def test_a_gang_that_no_scheduler_can_start_any_more_keeps_no_quota(self, admitted: bool) -> None:
        cluster = queued(scheduling={"schedulingPolicy": {"gang": {}}, "schedulerName": "volcano"})
        usable = cluster.capabilities
        cluster.capabilities = replace(usable, gangs_enabled=True, pod_groups=frozenset({VOLCANO}))
        cluster.settle()
        assert cluster.kueue.workload is not None
        if admitted:
            cluster.kueue.admit()
        cluster.capabilities = usable
        cluster.settle()
        assert cluster.kueue.writes == ["create", "delete"]
        assert condition(cluster, "Running").reason == "NoGangScheduler"
        cluster.capabilities = replace(usable, gangs_enabled=True, pod_groups=frozenset({VOLCANO}))
        cluster.settle()
        assert (cluster.kueue.writes[-1], cluster.status.phase) == ("create", "Queued")


class TestPriority:
    def test_it_is_that_of_the_queues_class_with_its_value(self) -> None:
        cluster = queued()
        cluster.job = replace(cluster.job, queue_priority="high")
        cluster.settle()
        assert cluster.kueue.workload is None
        assert "WorkloadPriorityClass high" in condition(cluster).message
        cluster.priority = 1000
        cluster.settle()
        assert cluster.kueue.workload is not None
        spec = cluster.kueue.workload["spec"]
        assert (spec["priority"], spec["priorityClassRef"]["kind"]) == (1000, "WorkloadPriorityClass")

    def test_without_one_it_is_that_of_the_pods(self) -> None:
        cluster = queued(scheduling={"priorityClassName": "urgent"})
        cluster.priority = 7
        cluster.settle()
        assert cluster.kueue.workload is not None
        reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "urgent"}
        assert cluster.kueue.workload["spec"]["priorityClassRef"] == reference

    def test_another_class_reaches_a_workload_that_has_quota(self) -> None:
        cluster = queued()
        cluster.job, cluster.priority = replace(cluster.job, queue_priority="high"), 1000
        cluster.settle()
        cluster.kueue.admit()
        cluster.started()
        cluster.job, cluster.priority = replace(cluster.job, queue_priority="low"), 1
        cluster.settle()
        assert cluster.kueue.workload is not None
        assert cluster.kueue.workload["spec"]["priority"] == 1
        assert cluster.status.phase == "Running"

    def test_with_another_class_comes_no_other_queue_while_quota_is_reserved(self) -> None:
        cluster = queued()
        cluster.job, cluster.priority = replace(cluster.job, queue_priority="high"), 1000
        cluster.settle()
        cluster.kueue.admit()
        cluster.started()
        cluster.job = replace(cluster.job, queue="team-b", queue_priority="low")
        cluster.settle()
        assert cluster.kueue.workload is not None
        spec = cluster.kueue.workload["spec"]
        assert (spec["queueName"], spec["priorityClassRef"]["name"]) == ("team-a", "low")

    def test_a_class_that_came_too_late_is_no_write_that_the_cluster_would_refuse(self) -> None:
        cluster = running()
        cluster.job, cluster.priority = replace(cluster.job, queue_priority="high"), 1000
        assert cluster.plan().workload == ()


class TestAdmitted:
    def test_the_pods_go_where_the_flavor_says(self) -> None:
        cluster = queued(template={"nodeSelector": {"zone": "a"}})
        cluster.settle()
        cluster.kueue.admit()
        cluster.settle()
        pod = next(iter(cluster.pods.values()))
        assert pod["spec"]["nodeSelector"] == {"zone": "a", "example.com/kind": "spot"}
        assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
        assert condition(cluster).status == "True"

    def test_the_pods_carry_kueues_labels_but_not_the_one_that_would_queue_each(self) -> None:
        cluster = running()
        labels = metadata_of_pods(cluster)[0]["labels"]
        found = {key: value for key, value in labels.items() if "kueue" in key}
        assert found == {
            "kueue.x-k8s.io/podset": "ranks",
            "kueue.x-k8s.io/cluster-queue-name": "cluster-queue",
            "kueue.x-k8s.io/local-queue-name": "team-a",
        }

    def test_a_flavor_that_says_nothing_changes_nothing(self) -> None:
        cluster = queued()
        cluster.flavors = {"spot": flavor.view({"spec": {}})}
        cluster.settle()
        cluster.kueue.admit()
        cluster.settle()
        pod = next(iter(cluster.pods.values()))
        assert not {"nodeSelector", "tolerations"} & set(pod["spec"])

    def test_what_an_admission_check_adds_is_added_and_never_takes_our_labels(self) -> None:
        cluster = queued()
        cluster.settle()
        update = {
            "name": "ranks",
            "nodeSelector": {"pool": "p-1"},
            "annotations": {"autoscaler/consume": "p-1"},
            "labels": {"extra": "yes", names.LABEL_JOB_UID: "foreign"},
            "tolerations": [{"key": "pool", "operator": "Exists"}],
        }
        assert cluster.kueue.workload is not None
        checks = [{"name": "nodes", "state": "Ready", "message": "", "podSetUpdates": [update]}]
        cluster.kueue.workload["status"]["admissionChecks"] = checks
        cluster.kueue.admit()
        cluster.settle()
        pod = next(iter(cluster.pods.values()))
        assert pod["spec"]["nodeSelector"]["pool"] == "p-1"
        assert {"key": "pool", "operator": "Exists"} in pod["spec"]["tolerations"]
        assert pod["metadata"]["annotations"] == {"autoscaler/consume": "p-1"}
        assert (pod["metadata"]["labels"]["extra"], pod["metadata"]["labels"][names.LABEL_JOB_UID]) == (
            "yes",
            "0000-1111",
        )

    def test_kueue_hears_that_all_ranks_run_and_that_one_was_lost_and_replaced(self) -> None:
        cluster = queued(failurePolicy={"backoffSeconds": 0})
        cluster.settle()
        cluster.kueue.admit()
        cluster.settle()
        assert cluster.kueue.condition("PodsReady") == ("False", "WaitForStart")
        cluster.started()
        assert cluster.kueue.condition("PodsReady") == ("True", "Started")
        cluster.exit(1, 137)
        cluster.settle()
        assert cluster.kueue.condition("PodsReady") == ("False", "WaitForRecovery")
        cluster.started()
        assert cluster.kueue.condition("PodsReady") == ("True", "Recovered")
        assert set(cluster.kueue.writes) == {"create", "patch-status"}, "a restart keeps its Workload"

    def test_a_plan_carried_out_asks_for_nothing_more(self) -> None:
        cluster = running()
        again = cluster.plan()
        assert (again.workload, again.create, again.delete, again.events) == ((), (), (), ())
        assert again.status == cluster.status

    def test_another_queue_while_quota_is_reserved_is_said_and_changes_nothing(self) -> None:
        cluster = running()
        labelled(cluster, "team-b")
        cluster.settle()
        found = condition(cluster)
        assert (found.status, found.reason, cluster.status.phase) == ("True", "QueueChanged", "Running")
        assert "suspend the job to move it" in found.message
        assert cluster.events.count("QueueChanged") == 1
        suspend(cluster, True)
        cluster.settle()
        suspend(cluster, False)
        cluster.settle()
        assert cluster.kueue.workload is not None
        assert cluster.kueue.workload["spec"]["queueName"] == "team-b"


class TestEvicted:
    def test_every_rank_saves_and_then_the_quota_is_released(self) -> None:
        cluster = running()
        cluster.train_to(40, checkpoint_step=40)
        cluster.kueue.evict()
        first = cluster.step()
        assert {deletion.grace_seconds for deletion in first.delete} == {60}
        assert (cluster.status.phase, cluster.kueue.holds_quota()) == ("Suspending", True)
        cluster.settle()
        assert (cluster.pods, cluster.kueue.holds_quota(), cluster.status.phase) == ({}, False, "Queued")
        record = cluster.status.attempts[0]
        assert (record.reason, record.checkpoint_step, cluster.status.restarts) == ("Evicted", 40, 0)
        assert cluster.kueue.condition("QuotaReserved") == ("False", "Pending")
        assert cluster.kueue.condition("Admitted") == ("False", "NoReservation")
        assert cluster.kueue.condition("PodsReady") == ("False", "WaitForStart")
        assert cluster.kueue.workload is not None
        assert "admission" not in cluster.kueue.workload["status"]

    @pytest.mark.parametrize(("reason", "requeued"), [("Preempted", "True"), ("ClusterQueueStopped", "False")])
    def test_only_some_evictions_queue_it_again_at_once(self, reason: str, requeued: str) -> None:
        cluster = running()
        cluster.kueue.evict(reason)
        cluster.settle()
        assert cluster.kueue.condition("Requeued") == (requeued, reason)

    def test_admitted_again_it_goes_on_and_has_kept_its_place(self) -> None:
        cluster = running(runPolicy={"activeDeadlineSeconds": 1000})
        assert cluster.kueue.workload is not None
        before = cluster.kueue.workload["metadata"]
        cluster.kueue.evict()
        cluster.settle()
        assert cluster.status.start_time is None
        cluster.now += 10_000
        cluster.kueue.admit()
        cluster.settle()
        assert sorted(cluster.pods) == ["digits-base-1-0", "digits-base-1-1"]
        after = cluster.kueue.workload["metadata"]
        assert (after["uid"], after["creationTimestamp"]) == (before["uid"], before["creationTimestamp"])
        assert (cluster.status.phase, cluster.status.restarts_count_towards_max) == ("Starting", 0)

    def test_a_rank_that_failed_by_its_own_fault_is_not_forgotten(self) -> None:
        cluster = running()
        cluster.kueue.evict()
        cluster.exit(0, 15, report={"class": "StorageError", "message": "disk full"})
        cluster.settle()
        assert (cluster.status.attempts[0].reason, cluster.status.phase) == ("StorageError", "Queued")

    def test_an_inactive_workload_stops_the_gang_and_says_what_to_do(self) -> None:
        cluster = running()
        cluster.kueue.activate(False)
        cluster.settle()
        assert (cluster.pods, cluster.kueue.holds_quota()) == ({}, True), "Kueue has not evicted it yet"
        cluster.kueue.notice_inactive()
        cluster.settle()
        assert not cluster.kueue.holds_quota()
        assert "spec.active" in condition(cluster).message
        cluster.kueue.activate(True)
        cluster.kueue.admit()
        assert cluster.started().status.phase == "Running"

    def test_a_workload_that_somebody_deletes_stops_the_gang_and_is_made_anew(self) -> None:
        cluster = running()
        cluster.kueue.remove()
        cluster.step()
        assert (cluster.status.phase, cluster.kueue.workload) == ("Suspending", None)
        assert cluster.pods, "its pods still use what it has lost: a new one must wait for them"
        cluster.settle()
        assert (cluster.pods, cluster.kueue.workload is not None) == ({}, True)
        assert cluster.status.attempts[0].reason == "Evicted"

    def test_a_new_one_waits_for_the_pods_of_an_earlier_attempt_too(self) -> None:
        cluster = running()
        cluster.exit(1, 137)
        cluster.step()
        cluster.kueue.remove()
        cluster.step()
        cluster.step()
        assert (cluster.status.phase, cluster.kueue.workload, len(cluster.pods)) == ("Queued", None, 2)
        cluster.settle()
        assert cluster.kueue.workload is not None

    def test_a_back_off_from_before_does_not_delay_a_job_that_is_admitted_again(self) -> None:
        cluster = running(failurePolicy={"backoffSeconds": 600})
        cluster.exit(1, 137)
        cluster.settle()
        assert cluster.plan().wake_seconds == 600
        cluster.kueue.evict()
        cluster.settle()
        cluster.kueue.admit()
        cluster.settle()
        assert len(cluster.pods) == 2

    def test_evictions_do_not_lengthen_the_back_off_of_a_failure(self) -> None:
        cluster = running(failurePolicy={"backoffSeconds": 20})
        for _ in range(3):
            cluster.kueue.evict()
            cluster.settle()
            cluster.kueue.admit()
            cluster.started()
        cluster.exit(1, 137)
        assert cluster.step().wake_seconds == 20

    @pytest.mark.parametrize("trains", [False, True])
    def test_a_workload_that_others_finished_is_replaced(self, trains: bool) -> None:
        cluster = running() if trains else queued()
        cluster.settle()
        assert cluster.kueue.workload is not None
        before = cluster.kueue.workload["metadata"]["uid"]
        cluster.kueue.finish()
        cluster.settle()
        assert cluster.kueue.workload["metadata"]["uid"] != before
        assert (cluster.kueue.condition("Finished"), cluster.pods) == (("", ""), {})

    def test_the_loss_of_steps_without_a_claim_is_said_once(self) -> None:
        cluster = running(checkpoint={})
        cluster.train_to(7)
        cluster.kueue.evict()
        cluster.settle()
        assert (cluster.events.count("ProgressLost"), cluster.events.count("Evicted")) == (1, 1)


class TestEnd:
    @pytest.mark.parametrize(("code", "reason"), [(0, "Succeeded"), (10, "Failed")])
    def test_kueue_hears_of_it_once_no_rank_runs(self, code: int, reason: str) -> None:
        cluster = running()
        for index in (0, 1):
            assert cluster.kueue.condition("Finished") == ("", "")
            cluster.exit(index, code)
            cluster.step()
        cluster.settle()
        assert cluster.kueue.condition("Finished") == ("True", reason)
        assert cluster.plan().workload == ()

    def test_ranks_that_stay_after_a_failure_keep_their_quota(self) -> None:
        cluster = running(runPolicy={"cleanPodPolicy": "None"})
        cluster.exit(0, 10)
        cluster.settle()
        assert (cluster.status.phase, cluster.kueue.holds_quota()) == ("Failed", True)
        cluster.exit(1, 137)
        cluster.settle()
        assert cluster.kueue.condition("Finished") == ("True", "Failed")

    def test_a_suspended_job_leaves_the_queue_when_its_pods_have_stopped(self) -> None:
        cluster = running()
        suspend(cluster, True)
        cluster.step()
        assert cluster.kueue.holds_quota()
        cluster.settle()
        assert (cluster.kueue.workload, cluster.status.phase) == (None, "Suspended")
        assert condition(cluster).reason == "Suspended"
        suspend(cluster, False)
        cluster.settle()
        assert (cluster.kueue.workload is not None, cluster.status.phase) == (True, "Queued")


class TestStages:
    def test_the_largest_that_is_left_decides_and_the_rest_is_given_back(self) -> None:
        cluster = running(device={"type": "CPU", "count": 3}, stages=STAGES)
        assert cluster.kueue.workload is not None
        assert cluster.kueue.workload["spec"]["podSets"][0]["count"] == 3
        for index in range(3):
            cluster.exit(index, 0)
        cluster.settle()
        assert len(cluster.gang()) == 2
        assert cluster.kueue.workload["status"]["reclaimablePods"] == [{"name": "ranks", "count": 1}]
        assert cluster.kueue.writes.count("create") == 1

    def test_a_job_that_joins_late_asks_only_for_what_is_left(self) -> None:
        cluster = running(device={"type": "CPU", "count": 3}, stages=STAGES)
        for index in range(3):
            cluster.exit(index, 0)
        cluster.settle()
        suspend(cluster, True)
        cluster.settle()
        suspend(cluster, False)
        cluster.settle()
        assert cluster.kueue.workload is not None
        assert cluster.kueue.workload["spec"]["podSets"][0]["count"] == 2

    def test_a_workload_for_too_few_pods_is_replaced(self) -> None:
        cluster = running()
        assert cluster.kueue.workload is not None
        cluster.kueue.workload["spec"]["podSets"][0]["count"] = 1
        cluster.settle()
        assert cluster.kueue.workload["spec"]["podSets"][0]["count"] == 2
        assert (cluster.pods, cluster.status.phase) == ({}, "Queued")


class TestWithoutKueue:
    @pytest.mark.parametrize(
        ("capabilities", "reason"),
        [(Capabilities(kueue=True), "KueueDisabled"), (Capabilities(kueue_enabled=True), "KueueMissing")],
        ids=["disabled", "missing"],
    )
    def test_the_label_has_no_effect_and_the_condition_says_so(self, capabilities: Capabilities, reason: str) -> None:
        cluster = queued()
        cluster.capabilities = capabilities
        cluster.started()
        found = condition(cluster)
        assert (found.status, found.reason, cluster.status.phase) == ("False", reason, "Running")
        assert "no effect" in found.message
        assert cluster.kueue.writes == []
        assert cluster.events.count(reason) == 1

    def test_apart_from_that_nothing_changes(self) -> None:
        plain, labelled_job = Cluster(job()), queued()
        labelled_job.capabilities = Capabilities()
        assert plain.started().pods == labelled_job.started().pods

    def test_a_gang_that_runs_already_is_not_stopped_for_a_queue(self) -> None:
        cluster = queued()
        cluster.capabilities = Capabilities()
        cluster.started()
        cluster.capabilities = KUEUE
        cluster.settle()
        assert (cluster.status.phase, condition(cluster).reason) == ("Running", "NotQueued")
        assert cluster.kueue.writes == []
        cluster.exit(1, 137)
        cluster.settle()
        assert (cluster.status.phase, cluster.pods) == ("Queued", {})

    def test_an_admitted_gang_outlives_an_operator_that_may_not_use_kueue(self) -> None:
        cluster = running()
        cluster.capabilities = Capabilities(kueue=True)
        cluster.settle()
        assert (cluster.status.phase, condition(cluster).reason) == ("Running", "KueueDisabled")
        cluster.capabilities = KUEUE
        cluster.settle()
        assert (cluster.status.phase, condition(cluster).status) == ("Running", "True")

    def test_an_eviction_that_happened_meanwhile_is_obeyed_once_it_may_use_it_again(self) -> None:
        cluster = running()
        cluster.capabilities = Capabilities()
        cluster.settle()
        cluster.kueue.evict()
        cluster.settle()
        assert cluster.status.phase == "Running"
        cluster.capabilities = KUEUE
        cluster.settle()
        assert (cluster.status.phase, cluster.kueue.holds_quota()) == ("Queued", False)


class TestGatedPods:
    def gated(self, wanted: Job) -> str:
        cluster = Cluster(wanted)
        cluster.settle()
        for pod in cluster.pods.values():
            pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
            held = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
            pod["status"]["conditions"] = [held]
        cluster.settle()
        found = condition(cluster, "Running")
        assert found.reason == "GatedByKueue"
        assert cluster.events.count("GatedByKueue") == 1
        return found.message

    def test_they_are_recognised_and_the_remedy_is_said(self) -> None:
        message = self.gated(job())
        assert "2/2 pods" in message
        assert "integrations.externalFrameworks" in message
        assert "ResNetBoostJob.v1alpha1.resnetboost.io" in message
        assert names.LABEL_QUEUE in message

    def test_what_the_job_has_already_is_not_asked_for(self) -> None:
        assert names.LABEL_QUEUE not in self.gated(replace(job(), queue="team-a"))
