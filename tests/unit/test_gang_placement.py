"""The plan with gang schedulers: what holds a gang back, and whose words say why it waits or was preempted."""

from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api.status import Condition
from resnetboost_operator import status
from resnetboost_operator.observed import capabilities
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.pods import timestamp
from support.membership import SCHEDULERS, Scheduler
from support.simulation import Cluster, Crash, job

GANG: dict[str, Any] = {"gang": {}}
BASIC: dict[str, Any] = {"basic": {}}
RACK = {"topology": [{"key": "example.com/rack"}]}
KUBERNETES = Capabilities(pod_groups=frozenset({capabilities.KUBERNETES_1_36}), gangs_enabled=True)
VOLCANO = Capabilities(pod_groups=frozenset({capabilities.VOLCANO}), gangs_enabled=True)


def cluster(found: Capabilities = KUBERNETES, count: int = 4, **scheduling: Any) -> Cluster:
    """A cluster that offers that, and a job whose gang has `count` ranks."""
    wanted = job(device={"type": "CPU", "count": count}, scheduling=scheduling, failurePolicy={"backoffSeconds": 0})
    made = Cluster(wanted)
    made.capabilities = found
    return made


def running(found: Cluster) -> Condition:
    condition = status.condition(found.status, "Running")
    assert condition is not None
    return condition


def said(found: Cluster) -> tuple[str, str]:
    return running(found).reason, running(found).message


def judged(found: Cluster, reason: str, message: str, **group: Any) -> None:
    """What kube-scheduler 1.36 writes on the one group; `group` replaces fields of the condition."""
    (only,) = found.pod_groups.values()
    condition = {"type": "PodGroupScheduled", "status": "False", "reason": reason, "message": message} | group
    only["status"] = {"conditions": [condition]}


def pods_judged(found: Cluster, reason: str, message: str, count: int = 99) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    for pod in found.gang()[:count]:
        pod["status"]["conditions"] = [condition]


class TestHold:
    def test_gang_without_a_gang_scheduler_starts_nothing_and_says_why(self) -> None:
        found = cluster(Capabilities(), schedulingPolicy=GANG)
        found.settle()
        assert (found.pods, found.pod_groups) == ({}, {})
        reason, message = said(found)
        assert reason == "NoGangScheduler"
        assert "gangScheduling.enabled" in message
        assert found.status.phase == "Pending"
        assert found.events == ["NoGangScheduler"], "one warning"

    def test_it_starts_as_soon_as_there_is_one(self) -> None:
        found = cluster(Capabilities(), schedulingPolicy=GANG)
        found.settle()
        found.capabilities = KUBERNETES
        found.settle()
        assert (len(found.pods), len(found.pod_groups)) == (4, 1)
        assert said(found)[0] == "Starting"

    def test_it_waits_without_an_end_but_for_the_jobs_own_deadline(self) -> None:
        wanted = job(scheduling={"schedulingPolicy": GANG}, runPolicy={"activeDeadlineSeconds": 5000})
        found = Cluster(wanted)
        assert found.step().wake_seconds == 5000
        found.now += 4999
        found.settle()
        assert (found.status.restarts, found.status.phase) == (0, "Pending")
        found.now += 1
        found.settle()
        assert found.status.phase == "Failed"

    def test_a_gang_that_lost_its_scheduler_restarts_into_the_hold_and_leaves_no_pod(self) -> None:
        found = cluster(schedulingPolicy=GANG).started()
        found.capabilities = Capabilities()
        found.exit(0, 137)
        found.settle()
        assert found.pods == {}
        assert said(found)[0] == "NoGangScheduler"

    def test_pods_that_a_crash_left_behind_are_deleted_in_the_hold_as_well(self) -> None:
        found = cluster(schedulingPolicy=GANG).started()
        found.exit(0, 137)
        with pytest.raises(Crash):
            found.step(crash_after=1)
        found.capabilities = Capabilities()
        found.settle()
        assert found.pods == {}

    def test_a_running_gang_is_left_alone_when_its_scheduler_goes(self) -> None:
        found = cluster(schedulingPolicy=GANG).started()
        found.capabilities = Capabilities()
        found.settle()
        assert (found.status.phase, len(found.pods)) == ("Running", 4)

    @pytest.mark.parametrize("policy", [None, BASIC])
    def test_without_the_wish_pods_are_scheduled_one_by_one_as_ever(self, policy: dict[str, Any] | None) -> None:
        plain, found = cluster(Capabilities()), cluster(Capabilities(), schedulingPolicy=policy)
        plain.settle()
        found.settle()
        assert {name: pod["spec"] for name, pod in found.pods.items()} == {
            name: pod["spec"] for name, pod in plain.pods.items()
        }
        assert "schedulingGroup" not in found.rank(0)["spec"]

    def test_basic_makes_no_group_in_any_cluster(self) -> None:
        found = cluster(KUBERNETES, schedulingPolicy=BASIC)
        found.settle()
        assert found.pod_groups == {}
        assert "schedulingGroup" not in found.rank(0)["spec"]


class TestGroup:
    def test_a_group_that_is_there_is_not_wanted_again(self) -> None:
        found = cluster()
        found.step()
        found.pods.clear()
        assert [made["kind"] for made in found.plan().create].count("PodGroup") == 0

    def test_a_group_that_is_being_deleted_does_not_count(self) -> None:
        found = cluster()
        found.step()
        found.pods.clear()
        (group,) = found.pod_groups.values()
        group["metadata"]["deletionTimestamp"] = timestamp(found.now)
        assert found.plan().create[0]["kind"] == "PodGroup"

    @pytest.mark.parametrize("known", SCHEDULERS[:4], ids=lambda known: known.name)
    def test_a_restart_has_a_group_of_its_own_before_its_first_pod(self, known: Scheduler) -> None:
        """Old pods may go one by one: the new group counts none of them."""
        found = cluster(known.capabilities, **known.scheduling).started()
        found.exit(1, 137)
        found.step()
        assert "digits-base-0-0" in found.pods, "the gang before is still there"
        del found.pods["digits-base-0-1"]
        found.step()
        assert list(found.pod_groups) == ["digits-base-1"]
        assert [name for name in found.pods if name.startswith("digits-base-1")] == ["digits-base-1-1"]
        assert known.members(found.pods["digits-base-1-1"], found.pod_groups) == 4


class TestWords:
    def test_a_group_that_waits_does_so_in_its_schedulers_words(self) -> None:
        found = cluster()
        found.settle()
        pods_judged(found, "Unschedulable", "rejected by the group")
        judged(found, "Unschedulable", "pod group minCount is not satisfied: 2/4 pods fit")
        found.settle()
        assert said(found) == (
            "Unschedulable",
            "0/4 ranks are scheduled: pod group minCount is not satisfied: 2/4 pods fit",
        )
        assert found.events.count("Unschedulable") == 1

    def test_what_nodes_lack_is_added_from_the_pods(self) -> None:
        found = cluster()
        found.settle()
        pods_judged(found, "Unschedulable", "pod group is unschedulable, waiting for minCount pods")
        lacking = "0/3 nodes are available: 3 Insufficient example.com/dev. no new claims to deallocate"
        pods_judged(found, "Unschedulable", lacking, count=2)
        judged(found, "Unschedulable", "0/1 placements are available")
        found.settle()
        assert said(found)[1] == (
            "0/4 ranks are scheduled: 0/1 placements are available; "
            "0/3 nodes are available: 3 Insufficient example.com/dev"
        )

    def test_the_group_says_nothing_more_once_its_pods_are_bound(self) -> None:
        found = cluster()
        found.settle()
        judged(found, "Unschedulable", "not yet")
        found.run_all()
        found.settle()
        assert said(found)[0] == "Starting"

    def test_a_group_of_an_earlier_attempt_says_nothing(self) -> None:
        found = cluster().started()
        judged(found, "Unschedulable", "of the attempt before")
        old = dict(found.pod_groups)
        found.exit(0, 137)
        found.settle()
        found.pod_groups |= old  # its deletion takes a while
        found.settle()
        assert found.status.attempt == 1
        assert "of the attempt before" not in said(found)[1]

    def test_a_gang_that_is_still_created_is_no_trouble(self) -> None:
        """The scheduler finds too few pods of the group for as long."""
        found = cluster(VOLCANO, schedulerName="volcano").started()
        found.exit(0, 137)
        found.step()
        del found.pods["digits-base-0-1"]
        found.step()
        (group,) = found.pod_groups.values()
        unschedulable = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "1/1"}
        group["status"] = {"phase": "Pending", "conditions": [unschedulable]}
        found.step()
        assert said(found)[0] == "Starting"

    def test_the_sentence_of_the_pods_counts_where_the_group_has_none(self) -> None:
        found = cluster(SCHEDULERS[3].capabilities, **SCHEDULERS[3].scheduling)
        found.settle()
        pods_judged(found, "Unschedulable", "rejected due to timeout after waiting 60s at plugin Coscheduling")
        found.settle()
        assert said(found)[1].startswith("0/4 ranks are scheduled: rejected due to timeout")

    @pytest.mark.parametrize("by_group", [True, False])
    def test_a_label_that_no_node_has_is_named(self, by_group: bool) -> None:
        found = cluster(schedulingConstraints=RACK)
        found.labelled_nodes = 0
        found.settle()
        pods_judged(found, "Unschedulable", "0/3 nodes are available: 3 didn't match pod affinity rules.")
        if by_group:
            judged(found, "Unschedulable", "no placement found")
        found.settle()
        assert ".;" not in said(found)[1]
        assert said(found)[1].endswith(
            "; no node has the label example.com/rack: correct scheduling.schedulingConstraints or label the nodes"
        )
        found.labelled_nodes = 3
        found.settle()
        assert "no node has the label" not in said(found)[1]

    def test_a_label_is_no_matter_of_a_gang_without_that_constraint(self) -> None:
        found = cluster()
        found.labelled_nodes = 0
        found.settle()
        judged(found, "Unschedulable", "too large")
        found.settle()
        assert said(found)[1] == "0/4 ranks are scheduled: too large"


class TestSilence:
    def test_a_scheduler_that_looks_at_no_pod_is_named_after_30_s(self) -> None:
        found = cluster(Capabilities(), schedulerName="volcanoo")
        found.settle()
        assert found.plan().wake_seconds == 30
        found.now += 29
        found.settle()
        assert said(found)[0] == "Starting"
        found.now += 1
        found.settle()
        assert said(found) == (
            "SchedulerSilent",
            "no scheduler named volcanoo has looked at 4 pods for 30 s; correct scheduling.schedulerName or start that "
            "scheduler",
        )
        assert found.events.count("SchedulerSilent") == 1
        assert found.plan().wake_seconds not in (None, 0), "it wakes up for the next deadline alone"

    def test_it_is_silent_no_more_once_it_has_judged_one_pod(self) -> None:
        found = cluster(Capabilities())
        found.settle()
        found.now += 40
        found.settle()
        assert said(found)[1].startswith("no scheduler named default-scheduler has looked at 4 pods")
        pods_judged(found, "Unschedulable", "no room", count=1)
        found.settle()
        assert said(found)[0] == "Unschedulable"

    def test_one_bound_pod_proves_that_there_is_a_scheduler(self) -> None:
        found = cluster(Capabilities())
        found.settle()
        found.bind(0, "node-0")
        found.now += 40
        found.settle()
        assert said(found) == ("Starting", "1/4 ranks are scheduled")

    def test_what_it_says_of_the_group_is_said_of_its_pods(self) -> None:
        """Kubernetes queues the pods of a group only when it is whole, and judges the group first."""
        found = cluster()
        found.settle()
        judged(found, "Scheduled", "", status="True")
        found.now += 40
        found.settle()
        assert said(found)[0] == "Starting"

    def test_the_time_is_that_of_the_youngest_pod(self) -> None:
        """A gang grows pod by pod as the one before it goes; a gang scheduler looks at none before the last."""
        found = cluster().started()
        found.exit(0, 137)
        found.step()
        del found.pods["digits-base-0-1"]
        found.step()
        found.now += 100
        found.finish_deletions()
        found.step()
        found.step()
        assert len(found.gang()) == 4
        assert said(found)[0] == "Starting"
        assert found.plan().wake_seconds == 30

    @pytest.mark.parametrize(("known", "words"), [(SCHEDULERS[2], "queue"), (SCHEDULERS[4], "placeholders")])
    def test_other_causes_of_a_known_schedulers_silence_are_said(self, known: Scheduler, words: str) -> None:
        found = cluster(known.capabilities, **known.scheduling)
        found.settle()
        found.now += 30
        found.settle()
        assert said(found)[0] == "SchedulerSilent"
        assert words in said(found)[1]

    def test_kubelets_troubles_come_later(self) -> None:
        found = cluster().started()
        found.now += 100
        found.settle()
        assert found.status.phase == "Running"


class TestPreemption:
    WORDS = "default-scheduler: preempting to accommodate a higher priority podgroup"

    @pytest.mark.parametrize("ended", [True, False], ids=["ended", "still ending"])
    def test_who_preempted_the_gang_and_for_whom_is_on_record(self, ended: bool) -> None:
        found = cluster().started()
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        found.rank(2)["status"]["conditions"] = [condition | {"message": self.WORDS}]
        found.rank(2)["metadata"]["deletionTimestamp"] = timestamp(found.now)
        if ended:
            found.exit(2, 137)
        found.exit(0, 14, report={"class": "CommunicationError"})
        found.step()
        found.now += 60
        found.settle()
        record = found.status.attempts[0]
        assert (record.reason, record.rank) == ("Disrupted", 2)
        assert record.message is not None
        assert record.message.startswith(f"PreemptionByScheduler: {self.WORDS}")
        assert found.status.restarts_count_towards_max == 0


def test_only_the_wish_of_a_suspended_job_may_change_and_is_heeded() -> None:
    found = cluster().started()
    found.job = with_suspend(found, suspend=True)
    found.settle()
    found.finish_deletions()
    found.settle()
    spec = replace(found.job.spec, scheduling=job(scheduling={"schedulingPolicy": BASIC}).spec.scheduling)
    found.job = replace(found.job, spec=spec)
    found.job = with_suspend(found, suspend=False)
    found.settle()
    assert all("schedulingGroup" not in pod["spec"] for pod in found.gang())


def with_suspend(found: Cluster, *, suspend: bool) -> Any:
    policy = replace(found.job.spec.run_policy, suspend=suspend)
    return replace(found.job, spec=replace(found.job.spec, run_policy=policy))


def test_a_gang_that_began_before_the_cluster_served_groups_gets_none() -> None:
    cluster = Cluster(job())
    with pytest.raises(Crash):
        cluster.step(crash_after=5)
    assert len(cluster.pods) == 1
    cluster.capabilities = Capabilities(gangs_enabled=True, pod_groups=frozenset({capabilities.KUBERNETES_1_36}))
    cluster.step()
    assert len(cluster.pods) == 2
    assert not any("schedulingGroup" in pod["spec"] for pod in cluster.pods.values())
    assert cluster.pod_groups == {}
