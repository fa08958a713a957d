"""What a job's device time is said to have been lost to: a number for each cause, and the failure behind it."""

from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api.status import Goodput, Loss, Progress
from resnetboost_operator import lost_time, status
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.observed.flavor import Flavor
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import timestamp
from support.simulation import START, Cluster, job

RANKS = 2
Lost = dict[tuple[str, str], int]


def begun(**spec: Any) -> Cluster:
    """A job whose pods exist from second 0 on."""
    cluster = Cluster(job(**{"failurePolicy": {"backoffSeconds": 0}, **spec}))
    cluster.settle()
    return cluster


def trained(cluster: Cluster, step: int, saved: int, *, step_seconds: float | None = 1.0, resumed: int = 0) -> None:
    """Rank 0 reports this step now."""
    cluster.run_all()
    cluster.train_to(step, checkpoint_step=saved)
    cluster.progress = replace(cluster.progress or Progress(), step_seconds=step_seconds, resumed_step=resumed)
    cluster.settle()


def at(cluster: Cluster, second: int) -> None:
    cluster.now = START + second


def lost(cluster: Cluster) -> Lost:
    """Seconds of a rank by cause and failure."""
    found = cluster.status.goodput or Goodput()
    assert all(loss.device_seconds % RANKS == 0 for loss in found.lost)
    return {(loss.reason, loss.failure): loss.device_seconds // RANKS for loss in found.lost}


def productive(cluster: Cluster) -> int:
    assert cluster.status.goodput is not None
    return cluster.status.goodput.productive_device_seconds // RANKS


def killed() -> Cluster:
    """Trains from second 30 on, is at step 100 (of 1 s) at second 130 with 80 saved, killed at 135, seen at 137."""
    cluster = begun()
    at(cluster, 31)
    trained(cluster, 1, 0)
    at(cluster, 130)
    trained(cluster, 100, 80)
    at(cluster, 135)
    cluster.exit(1, 137)
    at(cluster, 137)
    cluster.settle()
    return cluster


def test_a_killed_rank_costs_detection_and_the_steps_that_are_not_saved() -> None:
    cluster = killed()
    # Steps 81 to 100, and the five seconds of training after the last report.
    assert lost(cluster) == {("Overhead", ""): 30, ("Replay", "Killed"): 25, ("Detection", "Killed"): 2}
    assert productive(cluster) == 80
    assert cluster.status.goodput is not None
    assert (cluster.status.goodput.attempt_seconds, cluster.status.goodput.percent) == (137, 100 * 80 // 137)


def test_seconds_without_a_step_are_not_counted_as_steps_that_are_repeated() -> None:
    cluster = begun()
    at(cluster, 31)
    trained(cluster, 1, 0)
    at(cluster, 180)
    trained(cluster, 100, 80)  # 50 s went elsewhere: evaluations, checkpoints
    at(cluster, 185)
    cluster.exit(1, 137)
    at(cluster, 187)
    cluster.settle()
    assert lost(cluster) == {("Overhead", ""): 80, ("Replay", "Killed"): 25, ("Detection", "Killed"): 2}


def test_the_next_attempts_start_is_lost_to_the_failure_before_it() -> None:
    cluster = killed()
    at(cluster, 160)
    trained(cluster, 82, 80, resumed=80)
    assert ("Restart", "Killed") not in lost(cluster), "an attempt is counted at its end"
    at(cluster, 178)
    trained(cluster, 100, 100, resumed=80)
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.settle()
    # It was seen to train at 160, two steps after it began.
    assert lost(cluster)["Restart", "Killed"] == 158 - 137
    assert productive(cluster) == 80 + 20
    assert lost(cluster)["Overhead", ""] == 30


def test_back_off_counts_as_restart() -> None:
    cluster = begun(failurePolicy={"backoffSeconds": 40})
    at(cluster, 10)
    trained(cluster, 1, 0)
    at(cluster, 20)
    cluster.exit(1, 137)
    cluster.settle()
    assert cluster.status.waiting_time == timestamp(START + 20)
    at(cluster, 60)
    cluster.settle()
    assert cluster.status.waiting_time is None
    assert lost(cluster)["Restart", "Killed"] == 40


def test_the_back_off_of_ranks_that_start_again_in_place_counts_as_restart() -> None:
    """Their attempt is decided on at once and begins later; until then they wait."""
    cluster = begun()
    at(cluster, 10)
    trained(cluster, 10, 10)
    before = cluster.status
    cluster.exit(1, 137)
    cluster.status = replace(cluster.plan().status, attempt_creation_time=timestamp(START + 25))
    assert before.attempt < cluster.status.attempt
    cluster.pods.clear()
    at(cluster, 20)
    cluster.settle()
    assert ("Restart", "Killed") not in lost(cluster)
    at(cluster, 31)
    cluster.settle()
    assert cluster.status.waiting_time is None
    assert lost(cluster)["Restart", "Killed"] == 15
    at(cluster, 40)
    cluster.run_all()
    cluster.exit(0, 15)
    cluster.settle()
    assert lost(cluster) == {("Restart", "Killed"): 15, ("Restart", "StorageError"): 15}


def test_an_attempt_that_begins_knows_nothing_of_the_one_before() -> None:
    """As after a run that is opened again, whose status still has the times of its last attempt."""
    cluster = begun()
    at(cluster, 20)
    trained(cluster, 20, 20)
    old = replace(cluster.status, attempt=1, attempt_creation_time=None, attempt_start_time=None)
    cluster.status = replace(old, conditions=(), attempt_waited_seconds=7)
    cluster.pods.clear()
    at(cluster, 100)
    cluster.settle()
    assert cluster.status.attempt_creation_time == timestamp(START + 100)
    assert (cluster.status.attempt_training_time, cluster.status.attempt_waited_seconds) == (None, 0)


def test_a_start_that_fails_is_lost_to_its_own_failure() -> None:
    cluster = begun()
    at(cluster, 50)
    cluster.run_all()
    cluster.exit(0, 15)
    cluster.settle()
    assert lost(cluster) == {("Restart", "StorageError"): 50}


def test_an_attempt_that_failed_while_it_loaded_has_no_step_to_fail_at_again() -> None:
    """The next one resumes from what an earlier one saved, and may meet the same passing outage."""
    cluster = killed()
    for attempt in (1, 2):
        at(cluster, 140 + 50 * attempt)
        cluster.settle()
        cluster.run_all()
        cluster.load()
        cluster.settle()
        if attempt == 2:
            trained(cluster, 80, 80, resumed=80)
        cluster.exit(0, 15)
        cluster.settle()
    assert [found.last_step for found in cluster.status.attempts] == [100, None, 80]
    assert cluster.status.restarts == 3
    assert (cluster.status.goodput or Goodput()).repeated_steps == 20


def test_a_first_start_is_overhead() -> None:
    cluster = begun()
    at(cluster, 50)
    trained(cluster, 1, 0, step_seconds=None)
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.settle()
    assert lost(cluster) == {("Overhead", ""): 50}


def test_a_hang_is_detection_since_the_last_step() -> None:
    cluster = begun(failurePolicy={"backoffSeconds": 0, "hangTimeoutSeconds": 300})
    at(cluster, 20)
    trained(cluster, 20, 20)
    at(cluster, 320)
    cluster.settle()
    assert cluster.status.attempts[-1].reason == "Hang"
    assert lost(cluster) == {("Detection", "Hang"): 300}
    assert productive(cluster) == 20


def test_a_gang_that_stood_still_before_it_was_killed_did_not_train_meanwhile() -> None:
    cluster = begun()
    at(cluster, 20)
    trained(cluster, 20, 20)
    at(cluster, 220)
    cluster.exit(0, 137)
    cluster.settle()
    assert lost(cluster) == {("Detection", "Killed"): 200}


def test_the_wait_for_an_explanation_is_detection_and_outlives_the_pods_that_tell_of_the_failure() -> None:
    cluster = begun()
    cluster.nodes = {"node-0": NodeView("node-0", ready=True, silent_since=START)}
    at(cluster, 20)
    trained(cluster, 20, 20)
    at(cluster, 30)
    cluster.exit(1, 14)  # a victim: whose fault it is shows within a minute
    at(cluster, 33)
    cluster.settle()
    assert (cluster.status.failure_time, cluster.status.fault_time) == (timestamp(START + 33), timestamp(START + 30))
    cluster.status = status.from_dict(status.to_dict(cluster.status))
    ended = cluster.rank(1)["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["finishedAt"] = None
    at(cluster, 93)
    cluster.settle()
    assert lost(cluster) == {("Detection", "CommunicationError"): 63, ("Replay", "CommunicationError"): 10}


def test_a_clock_of_a_node_that_is_wrong_moves_no_time_out_of_the_attempt() -> None:
    for finished in ("2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        cluster = begun()
        at(cluster, 20)
        trained(cluster, 20, 20)
        at(cluster, 30)
        cluster.exit(1, 137)
        cluster.rank(1)["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = finished
        cluster.settle()
        assert sum(lost(cluster).values()) + productive(cluster) == 30


def test_checks_before_training_are_preflight() -> None:
    cluster = begun()
    at(cluster, 50)
    cluster.run_all()
    cluster.train_to(1)
    cluster.progress = replace(cluster.progress or Progress(), preflight_seconds=12.4)
    cluster.settle()
    cluster.exit(0, 137)
    cluster.settle()
    assert lost(cluster)["Preflight", ""] == 12
    assert lost(cluster)["Overhead", ""] == 50 - 12


def test_pods_without_a_node_are_queueing_which_is_not_in_the_percentage() -> None:
    cluster = begun()
    for index in range(RANKS):
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        cluster.rank(index)["status"]["conditions"] = [unschedulable]
    at(cluster, 4)
    cluster.settle()
    assert cluster.status.attempt_waiting_time == timestamp(START + 4)
    at(cluster, 104)
    cluster.run_all()
    cluster.settle()
    after = cluster.status
    assert (after.attempt_waiting_time, after.attempt_waited_seconds) == (None, 100)
    at(cluster, 120)
    trained(cluster, 1, 0)
    at(cluster, 199)
    trained(cluster, 80, 80)
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.settle()
    assert lost(cluster) == {("Queueing", ""): 100, ("Overhead", ""): 19}
    assert cluster.status.goodput is not None
    assert cluster.status.goodput.percent == 100 * 80 // 99


def test_a_queue_is_queueing_and_an_eviction_is_behind_the_next_wait() -> None:
    cluster = Cluster(replace(job(), queue="team-a"))
    cluster.capabilities, cluster.flavors = Capabilities(kueue=True, kueue_enabled=True), {"spot": Flavor({})}
    cluster.settle()
    at(cluster, 100)
    cluster.kueue.admit()
    cluster.settle()
    assert lost(cluster) == {("Queueing", ""): 100}
    trained(cluster, 1, 1)
    at(cluster, 150)
    cluster.kueue.evict()
    cluster.settle()
    at(cluster, 210)
    cluster.kueue.admit()
    cluster.settle()
    assert lost(cluster)["Queueing", "Evicted"] == 60


def test_time_while_suspended_is_nobodys() -> None:
    cluster = begun()
    at(cluster, 20)
    trained(cluster, 20, 20)
    policy = cluster.job.spec.run_policy
    for suspend, second in ((True, 20), (False, 5000)):
        at(cluster, second)
        cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=replace(policy, suspend=suspend)))
        cluster.settle()
    at(cluster, 5030)
    trained(cluster, 21, 20, resumed=20)
    cluster.exit(0, 137)
    cluster.settle()
    assert sum(lost(cluster).values()) + productive(cluster) == 20 + 30
    assert lost(cluster)["Restart", "Suspended"] == 29


def test_a_first_start_that_is_suspended_is_overhead() -> None:
    cluster = begun()
    at(cluster, 20)
    policy = replace(cluster.job.spec.run_policy, suspend=True)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))
    cluster.settle()
    assert status.is_true(cluster.status, "Suspended")
    assert lost(cluster) == {("Overhead", ""): 20}


def test_an_attempt_that_ends_before_its_first_pod_is_counted() -> None:
    cluster = Cluster(job())
    cluster.status = cluster.plan().status  # the operator was killed before it created a pod
    at(cluster, 40)
    policy = replace(cluster.job.spec.run_policy, suspend=True)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))
    cluster.settle()
    assert status.is_true(cluster.status, "Suspended")
    assert lost(cluster) == {("Overhead", ""): 40}


OLD = {
    "attemptSeconds": 1000,
    "productiveSeconds": 800,
    "percent": 80,
    "lost": [{"reason": "Killed", "deviceSeconds": 300}, {"reason": "Overhead", "deviceSeconds": 100}],
}


def test_an_older_operators_numbers_go_on() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0}))
    cluster.status = status.from_dict({"goodput": OLD})
    cluster.settle()
    at(cluster, 10)
    trained(cluster, 10, 10)
    cluster.exit(0, 137)
    cluster.settle()
    assert lost(cluster)["Killed", ""] == 150
    assert productive(cluster) == 800 + 10
    assert cluster.status.goodput is not None
    assert cluster.status.goodput.percent == 80


def test_an_older_operators_running_attempt_is_counted_whole() -> None:
    """It wrote no time of training: the steps tell."""
    cluster = begun()
    at(cluster, 30)
    trained(cluster, 1, 0)
    old = status.to_dict(cluster.status)
    for name in ("attemptTrainingTime", "waitingTime", "attemptWaitedSeconds"):
        old.pop(name, None)
    cluster.status = status.from_dict(old)
    at(cluster, 130)
    trained(cluster, 100, 100)
    cluster.exit(0, 137)
    cluster.settle()
    assert lost(cluster) == {("Overhead", ""): 30}
    assert productive(cluster) == 100


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Goodput(), ""),
        (Goodput(percent=100), ""),
        (
            Goodput(
                percent=92,
                lost=(Loss("Replay", 20, "Hang"), Loss("Restart", 30, "Hang"), Loss("Restart", 30, "Killed")),
            ),
            "lost 8 %: restart 6 %, replay 2 %",
        ),
        (
            Goodput(percent=99, lost=(Loss("Overhead", 99), Loss("Detection", 1, "Hang"), Loss("Queueing", 10**6))),
            "lost 1 %: detection under 1 %, overhead 1 %",
        ),
        (Goodput(percent=50, lost=(Loss("Killed", 10), Loss("Overhead", 10))), "lost 50 %: overhead 25 %, Killed 25 %"),
    ],
    ids=["nothing", "all of it", "by cause", "little", "of an older operator"],
)
def test_what_was_lost_reads_as_a_sentence(found: Goodput, words: str) -> None:
    assert lost_time.summary(found) == words
