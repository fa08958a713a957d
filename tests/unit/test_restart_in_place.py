"""Restarts in place on a simulated cluster: which failures, the command, the way back to new pods, what stays."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api import failures, names
from resnetboost_api.failures import FailureClass
from resnetboost_api.launcher import GangReport, RankEnd
from resnetboost_api.status import Goodput, PolledProgress, PreflightResult, Status
from resnetboost_operator import status
from resnetboost_operator.job import Job
from resnetboost_operator.manifests.trainer_config import trainer_config
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.nodes import NodeView
from resnetboost_operator.observed.pods import PodView, seconds, timestamp, view
from resnetboost_operator.observed.state import Observation, observe
from resnetboost_operator.planning import attempts
from resnetboost_operator.planning.faults import in_place
from resnetboost_operator.planning.wakeup import POLL_STARTING_SECONDS
from support.playedlaunchers import Launchers
from support.simulation import Cluster, Crash, job

ORIGINAL = ["digits-base-0-0", "digits-base-0-1"]
RENEWED = ["digits-base-1-0", "digits-base-1-1"]
MEASURED = PreflightResult(seconds=4.5, compute_median=17.2, compute_lowest=16.0, slowest_rank=0, collective_rate=55.5)


def training(**policy: Any) -> tuple[Cluster, Launchers]:
    """A gang of two ranks that train, with their launchers."""
    return trained(job(failurePolicy={"backoffSeconds": 10} | policy))


def trained(of: Job) -> tuple[Cluster, Launchers]:
    cluster = Cluster(of)
    cluster.settle()
    launchers = cluster.launch()
    cluster.train_to(5, checkpoint_step=4)
    cluster.settle()
    return cluster, launchers


def killed(**policy: Any) -> tuple[Cluster, Launchers]:
    """That gang after a rank was killed, and its failure recorded."""
    cluster, launchers = training(**policy)
    launchers.end(1, 137, cluster.now)
    cluster.step()
    return cluster, launchers


def pods(cluster: Cluster) -> list[str]:
    return sorted(cluster.pods)


def message(cluster: Cluster) -> str:
    found = status.condition(cluster.status, "Running")
    assert found is not None
    return found.message


def test_a_killed_rank_starts_again_in_its_pod() -> None:
    cluster, launchers = killed()
    record = cluster.status.attempts[0]
    assert (record.reason, record.rank, record.exit_code, record.node) == ("Killed", 1, 137, "node-1")
    assert (cluster.status.attempt, cluster.status.restarts, cluster.status.phase) == (1, 1, "Restarting")
    assert "the gang restarts in place in 10 s" in message(cluster)
    cluster.restarted()
    assert (pods(cluster), launchers.attempt, cluster.created) == (ORIGINAL, 1, ORIGINAL)
    assert sorted(launchers.starts) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cluster.train_to(6)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt, cluster.status.stages[0].attempts) == ("Running", 1, 2)


def test_the_command_has_the_new_attempt_the_back_off_and_another_port() -> None:
    cluster, launchers = training()
    launchers.end(1, 137, cluster.now)
    with pytest.raises(Crash):
        cluster.step(crash_after=1)  # the operator dies between the status and the command
    cluster.now += 4
    cluster.step()
    (command,) = launchers.commands
    assert (command.attempt, command.config["attempt"], command.config["stage"]) == (1, 1, "base")
    assert command.delay_seconds == seconds(cluster.status.restart_time) - cluster.now == 6.0
    assert command.coordinator_port != names.PORT_COORDINATOR


def test_successive_attempts_meet_at_different_ports_within_bounds() -> None:
    ports = []
    for attempt in range(200):
        found = Status(attempt=attempt, pods_attempt=0)
        ports.append(in_place.coordinator_port(found))
    assert all(one != other for one, other in pairwise(ports))
    assert set(ports) == set(range(names.PORT_COORDINATOR, names.PORT_COORDINATOR + in_place.COORDINATOR_PORTS))


def test_the_command_is_repeated_until_the_leader_has_heard_it() -> None:
    cluster, launchers = training()
    launchers.end(1, 137, cluster.now)
    first = cluster.step().command
    launchers.attempt = 0  # as if it had not
    assert first is not None
    assert cluster.plan().command == first
    launchers.command(first, cluster.now)
    assert cluster.plan().command is None


def test_nothing_of_the_api_but_the_status_is_written() -> None:
    cluster, launchers = training()
    launchers.end(1, 137, cluster.now)
    for _ in range(3):
        plan = cluster.step()
        assert (plan.create, plan.delete, plan.annotate, plan.workload, plan.obsolete) == ((), (), (), (), "")


CLASSES = [(verdict, verdict in in_place.HEALED) for verdict in failures.ALL if verdict not in (failures.SUCCEEDED,)]


@pytest.mark.parametrize(("verdict", "expected"), CLASSES, ids=lambda value: getattr(value, "name", str(value)))
def test_only_ends_that_a_rank_may_recover_from_restart_in_place(verdict: FailureClass, expected: bool) -> None:
    cluster, launchers = training()
    views = cluster.plan()  # settled: the same observation again
    assert views.launcher is not None
    observation = Observation(_views(cluster), cluster.progress, gang_report=launchers.report())
    state = observe(cluster.job, cluster.status, observation, cluster.now)
    failure = Failure(verdict, rank=1, node="node-1")
    record = attempts.record(failure, cluster.status, state.time)
    assert (in_place.obstacle(state, cluster.status, failure, record) == "") is expected


def test_what_is_about_nodes_devices_images_and_startups_never_restarts_in_place() -> None:
    elsewhere = {found.name for found in failures.ALL} - {found.name for found in in_place.HEALED}
    assert elsewhere == {
        "Succeeded",
        "Disrupted",
        "PodLost",
        "Rejected",
        "Straggler",
        "NotScheduled",
        "PreflightFailed",
        "InvalidPod",
        "ImageError",
        "StartupDeadlineExceeded",
        "RankTableRefused",
        "RankTableImpossible",
        "DeadlineExceeded",
        "Suspended",
        "Evicted",
        "Resized",
    }


def _views(cluster: Cluster) -> tuple[PodView, ...]:
    return tuple(view(pod) for pod in cluster.pods.values())


def _lose_pod(cluster: Cluster, launchers: Launchers) -> None:
    cluster.vanish(0)


def _end_container(cluster: Cluster, launchers: Launchers) -> None:
    cluster.exit(1, 137)


def _delete_pod(cluster: Cluster, launchers: Launchers) -> None:
    cluster.rank(1)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _disturb_node(cluster: Cluster, launchers: Launchers) -> None:
    cluster.nodes["node-0"] = NodeView("node-0", ready=False, silent_since=cluster.now)


def _lose_launcher(cluster: Cluster, launchers: Launchers) -> None:
    launchers.connected.discard(0)


def _lose_link(cluster: Cluster, launchers: Launchers) -> None:
    cluster.reached = False


def _be_ahead(cluster: Cluster, launchers: Launchers) -> None:
    launchers.attempt = 7


TROUBLES = [_lose_pod, _end_container, _delete_pod, _disturb_node, _lose_launcher, _lose_link, _be_ahead]


@pytest.mark.parametrize("trouble", TROUBLES[:5], ids=lambda found: found.__name__)
def test_a_gang_that_is_not_whole_restarts_with_new_pods(trouble: Any) -> None:
    cluster, launchers = training()
    launchers.end(1, 137, cluster.now)
    trouble(cluster, launchers)
    cluster.step()
    assert (cluster.status.attempt, cluster.status.restarts) == (1, 1)
    assert "it gets new pods because" in message(cluster)
    cluster.now += 10
    cluster.settle()
    assert pods(cluster) == RENEWED
    assert launchers.commands == []


def test_a_launcher_that_nobody_reaches_ends_its_container_and_the_gang_gets_new_pods() -> None:
    cluster, launchers = training()
    _lose_link(cluster, launchers)
    launchers.end(1, 137, cluster.now)
    cluster.settle()
    assert cluster.status.attempt == 0, "nobody has heard of the end yet"
    cluster.now += 10
    cluster.leave()
    cluster.step()
    assert "the gang restarts in 10 s; it gets new pods because" in message(cluster)
    assert (cluster.status.attempts[0].reason, cluster.status.attempts[0].rank) == ("Killed", 1)


def test_new_pods_always_if_the_job_says_so() -> None:
    cluster, launchers = training(restartIn="NewPod")
    assert cluster.plan().launcher is None
    launchers.end(1, 137, cluster.now)
    cluster.step()
    assert message(cluster).endswith("the gang restarts in 10 s")
    assert cluster.status.pods_attempt is None


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda found: found.__name__)
def test_ranks_that_do_not_all_start_in_place_get_new_pods_once(trouble: Any) -> None:
    """Nothing counts twice; only the number grows, because some ranks may have begun the attempt."""
    cluster, launchers = killed()
    cluster.now += 3
    trouble(cluster, launchers)
    cluster.settle()
    cluster.now += 17
    launchers.tick(cluster.now)
    cluster.settle()
    assert pods(cluster) == ["digits-base-2-0", "digits-base-2-1"]
    found = cluster.status
    assert (found.attempt, found.pods_attempt, found.restarts, found.restarts_count_towards_max) == (2, None, 1, 1)
    assert (len(found.attempts), found.stages[0].attempts) == (1, 2)
    assert "NewPods" in cluster.events


def test_a_launcher_that_does_not_obey_is_waited_for_no_longer_than_needed() -> None:
    cluster, launchers = training(backoffSeconds=0)
    launchers.deaf = {1}
    launchers.end(0, 137, cluster.now)
    cluster.settle()
    cluster.now += in_place.IN_PLACE_SECONDS - 1
    cluster.settle()
    assert pods(cluster) == ORIGINAL
    cluster.now += 1
    cluster.settle()
    assert pods(cluster) == ["digits-base-2-0", "digits-base-2-1"]


def test_an_operator_that_has_just_begun_waits_for_the_leaders_report() -> None:
    cluster, _launchers = killed(backoffSeconds=0)
    cluster.now += 60
    cluster.since, cluster.reached = cluster.now, False
    cluster.settle()
    assert pods(cluster) == ORIGINAL
    cluster.reached = True
    cluster.restarted()
    assert (pods(cluster), cluster.status.attempt) == (ORIGINAL, 1)
    assert cluster.status.attempt_start_time is not None


def taken_over() -> tuple[Cluster, Launchers]:
    """A gang in its back-off, whose operator is replaced by one with another key. Then its ranks start."""
    cluster, launchers = killed()
    cluster.now += 5
    cluster.since, cluster.reached = cluster.now, False
    plan = cluster.step()
    assert (plan.poll and plan.poll.index, plan.poll_seconds) == (0, 5.0 + POLL_STARTING_SECONDS)
    cluster.now += 5
    launchers.tick(cluster.now)
    return cluster, launchers


def test_an_attempt_in_place_that_trains_goes_on_under_an_operator_with_another_key() -> None:
    cluster, _launchers = taken_over()
    cluster.settle()
    cluster.now += 5
    cluster.train_to(6)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.attempt_start_time) == ("Running", timestamp(cluster.now))
    cluster.now += 10
    cluster.settle()
    assert (pods(cluster), cluster.status.attempt) == (ORIGINAL, 1)


def test_an_attempt_in_place_that_has_begun_has_the_startup_deadline_under_an_operator_with_another_key() -> None:
    cluster, _launchers = taken_over()
    cluster.load()
    cluster.now += in_place.IN_PLACE_SECONDS + 1
    cluster.settle()
    assert (pods(cluster), cluster.status.attempt) == (ORIGINAL, 1)
    wake = cluster.plan().wake_seconds
    assert wake is not None
    assert wake > 0
    cluster.now += wake
    cluster.step()
    assert cluster.status.attempts[-1].reason == "StartupDeadlineExceeded"


def test_an_attempt_in_place_of_which_nothing_is_heard_gets_new_pods() -> None:
    cluster, _launchers = taken_over()
    cluster.now += in_place.IN_PLACE_SECONDS
    cluster.settle()
    assert pods(cluster) == ["digits-base-2-0", "digits-base-2-1"]


def test_after_a_restart_in_place_that_came_to_nothing_the_next_one_is_with_new_pods() -> None:
    cluster, launchers = killed()
    cluster.restarted()
    launchers.end(0, 137, cluster.now)
    cluster.step()
    assert cluster.status.attempt == 2
    assert "attempt 1 started in place and finished no step" in message(cluster)
    assert cluster.status.pods_attempt is None


def test_restarts_in_place_follow_one_another_while_each_attempt_trains() -> None:
    cluster, launchers = training(maxRestarts=10)
    for attempt in range(1, 5):
        launchers.end(1, 137, cluster.now)
        cluster.step()
        cluster.restarted()
        assert (cluster.status.attempt, pods(cluster), launchers.attempt) == (attempt, ORIGINAL, attempt)
        cluster.now += 700
        cluster.train_to(10 * attempt, checkpoint_step=10 * attempt)
        cluster.settle()


def test_restarts_in_place_use_the_budget() -> None:
    cluster, launchers = training(maxRestarts=1)
    for _ in range(2):
        launchers.end(1, 137, cluster.now)
        cluster.step()
        if not status.is_terminal(cluster.status):
            cluster.restarted()
            cluster.train_to(9, checkpoint_step=8)
            cluster.settle()
    assert cluster.status.phase == "Failed"
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "MaxRestartsExceeded"


def test_a_failure_that_comes_again_at_the_same_step_fails_the_job_in_place_too() -> None:
    cluster, launchers = training()
    for _ in range(2):
        launchers.end(1, 1, cluster.now, message='{"class": "InternalError", "step": 7}')
        cluster.step()
        if not status.is_terminal(cluster.status):
            cluster.restarted()
            cluster.train_to(7, checkpoint_step=4)
            cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == failures.REPEATED


def test_a_failed_job_keeps_the_pod_whose_log_explains_it_though_its_container_still_runs() -> None:
    cluster, _launchers = killed(maxRestarts=0)
    assert cluster.status.phase == "Failed"
    cluster.finish_deletions()
    assert pods(cluster) == ["digits-base-0-1"]
    cluster.reached = False
    cluster.settle()
    assert pods(cluster) == ["digits-base-0-1"]
    cluster.now += 10
    cluster.leave()
    cluster.settle()
    assert pods(cluster) == ["digits-base-0-1"], "it ended by itself, and stays for its log"


def test_a_failed_jobs_pod_that_does_not_end_by_itself_gives_its_device_back() -> None:
    cluster, _launchers = killed(maxRestarts=0)
    cluster.settle()
    cluster.now += 20
    cluster.settle()
    assert pods(cluster) == []


def test_the_status_of_an_older_operator_means_the_attempts_own_pods() -> None:
    cluster, _launchers = training()
    old = {key: value for key, value in status.to_dict(cluster.status).items() if key != "podsAttempt"}
    assert status.pods_attempt(status.from_dict(old)) == cluster.status.attempt
    cluster.status = status.from_dict(old)
    plan = cluster.plan()
    assert (plan.create, plan.delete, plan.command, plan.status.restarts) == ((), (), None, 0)


def test_no_command_is_sent_where_an_older_crd_drops_the_attempt_of_the_pods() -> None:
    """Ranks would start in place, and then again in new pods, for one and the same attempt."""
    cluster, launchers = training()
    launchers.end(1, 137, cluster.now)
    decided = cluster.plan()
    assert in_place.recorded(decided.status, decided) == decided.command is not None
    cluster.status = replace(decided.status, pods_attempt=None)
    assert in_place.recorded(cluster.status, decided) is None
    cluster.now += 10
    cluster.settle()
    assert (pods(cluster), launchers.commands) == (RENEWED, [])


def test_a_gang_of_images_without_launchers_restarts_as_before() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.exit(1, 137)
    cluster.settle()
    assert pods(cluster) == RENEWED


def test_suspended_while_it_waits_for_the_back_off_the_gang_stops_and_resumes_with_new_pods() -> None:
    cluster, _launchers = killed()
    suspend(cluster, True)
    cluster.settle()
    assert (cluster.status.phase, pods(cluster)) == ("Suspended", [])
    suspend(cluster, False)
    cluster.settle()
    assert pods(cluster) == ["digits-base-2-0", "digits-base-2-1"]
    assert cluster.status.restarts == 1


def test_a_suspended_gang_that_had_restarted_in_place_has_the_time_to_save() -> None:
    cluster, _launchers = killed()
    cluster.restarted()
    cluster.train_to(9)
    cluster.settle()
    suspend(cluster, True)
    assert {found.grace_seconds for found in cluster.plan().delete} == {60}


def test_the_next_stage_gets_pods_of_its_own() -> None:
    stages = [
        {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8},
        {"name": "fine", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8},
    ]
    cluster = Cluster(job(stages=stages, failurePolicy={"backoffSeconds": 0})).started()
    launchers = cluster.launch()
    launchers.end(1, 137, cluster.now)
    cluster.step()
    cluster.restarted()
    for index in (0, 1):
        launchers.end(index, 0, cluster.now)
    cluster.leave()
    cluster.settle()
    assert {"digits-fine-2-0", "digits-fine-2-1"} <= set(pods(cluster))
    assert cluster.status.pods_attempt is None


def measured(cluster: Cluster) -> None:
    """Rank 0 answers with the result of its preflight, and trains."""
    attempt = cluster.status.attempt
    cluster.progress = PolledProgress(
        state="Training", stage="base", attempt=attempt, step=5, heartbeat=5, preflight=MEASURED
    )
    cluster.settle()


def test_an_attempt_in_place_has_no_preflight_where_an_earlier_one_in_these_pods_had() -> None:
    cluster, launchers = trained(job(preflight={"seconds": 5}))
    measured(cluster)
    for _ in range(2):
        launchers.end(1, 137, cluster.now)
        command = cluster.step().command
        assert command is not None
        assert "preflight" in trainer_config(cluster.job, cluster.job.spec.stages[0], 0)
        assert "preflight" not in command.config
        cluster.restarted()
        cluster.train_to(9)
        cluster.settle()


def test_an_attempt_in_place_is_measured_where_the_one_before_died_of_its_preflight() -> None:
    cluster = Cluster(job(preflight={"seconds": 5}))
    cluster.settle()
    cluster.launch().end(1, 137, cluster.now)
    command = cluster.step().command
    assert command is not None
    assert "preflight" in command.config


def test_the_preflight_of_earlier_pods_is_none_of_these() -> None:
    cluster, _launchers = trained(job(preflight={"seconds": 5}, failurePolicy={"backoffSeconds": 0}))
    measured(cluster)
    cluster.vanish(1)
    cluster.settle()
    cluster.launch().end(1, 137, cluster.now)
    command = cluster.step().command
    assert command is not None
    assert (cluster.status.pods_attempt, "preflight" in command.config) == (1, True)


def test_a_job_that_is_suspended_before_the_command_has_its_failure_once() -> None:
    cluster, launchers = training(nodeExclusion={})
    launchers.end(1, 1, cluster.now)
    with pytest.raises(Crash):
        cluster.step(crash_after=1)  # the operator dies between the status and the command
    cluster.now += 11
    cluster.leave()  # containers end with what happened in the attempt before
    run_policy = replace(cluster.job.spec.run_policy, suspend=True)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=run_policy))
    for _ in range(3):
        cluster.settle()
        cluster.finish_deletions()
    assert cluster.status.phase == "Suspended"
    assert [found.reason for found in cluster.status.attempts] == ["InternalError", "Suspended"]
    assert (cluster.status.goodput or Goodput()).repeated_steps == 1
    assert cluster.status.excluded_nodes == ()


def test_new_pods_after_ranks_that_did_not_start_are_lost_to_the_failure_before() -> None:
    cluster, launchers = killed(backoffSeconds=0)
    launchers.connected.discard(1)
    for _ in range(3):
        cluster.settle()
        cluster.finish_deletions()
    assert cluster.status.pods_attempt is None
    cluster.run_all()
    cluster.now += 30
    cluster.train_to(6)
    cluster.settle()
    cluster.exit(0, 137)
    cluster.settle()
    found = {(loss.reason, loss.failure): loss.device_seconds for loss in (cluster.status.goodput or Goodput()).lost}
    assert found.get(("Restart", "Killed"), 0) >= 2 * 30


def test_without_a_claim_new_pods_lose_what_was_saved_in_the_old_ones() -> None:
    cluster, launchers = trained(job(checkpoint={}, failurePolicy={"backoffSeconds": 0}))
    cluster.train_to(100, checkpoint_step=90)
    cluster.settle()
    launchers.end(1, 137, cluster.now)
    cluster.settle()
    cluster.restarted()
    for step, resumed in ((91, 90), (140, 90)):
        cluster.train_to(step)
        assert cluster.progress is not None
        cluster.progress = replace(cluster.progress, resumed_step=resumed)
        cluster.settle()
    assert (cluster.status.goodput or Goodput()).repeated_steps == 10
    cluster.vanish(1)
    for _ in range(3):
        cluster.now += 1
        cluster.settle()
        cluster.finish_deletions()
    cluster.run_all()
    cluster.train_to(1)
    assert cluster.progress is not None
    cluster.progress = replace(cluster.progress, resumed_step=0)
    cluster.settle()
    assert (cluster.status.goodput or Goodput()).repeated_steps == 10 + 140
    assert cluster.status.stages[0].checkpoint_step is None


def test_a_rank_that_was_killed_for_memory_is_told_so_with_the_remedy() -> None:
    limits = {"resources": {"limits": {"memory": "300Mi"}}}
    cluster, launchers = trained(job(template=limits))
    launchers.end(1, 137, cluster.now, message='{"class": "OutOfMemory"}')
    cluster.step()
    (record,) = cluster.status.attempts
    assert (record.reason, record.exit_code) == ("OutOfMemory", 137)
    assert "template.resources.limits.memory is 300Mi; raise it" in record.message


def test_a_gang_whose_launcher_does_not_answer_gets_new_pods_although_it_trains() -> None:
    silent, _launchers = training()
    silent.reached = False
    silent.now += 700  # a hang: no container ends
    silent.step()
    assert (silent.status.attempt, silent.status.pods_attempt) == (1, None)
    assert "the launcher of rank 0 (port 9401) does not answer" in message(silent)


def test_a_hang_is_healed_in_place() -> None:
    cluster, _launchers = training()
    cluster.now += 700
    cluster.step()
    assert (cluster.status.attempts[0].reason, cluster.status.attempt) == ("Hang", 1)
    assert "restarts in place" in message(cluster)


def test_a_victim_is_not_blamed_while_the_culprit_may_still_report() -> None:
    cluster, launchers = training()
    cluster.nodes = {f"node-{index}": NodeView(f"node-{index}", ready=True) for index in (0, 1)}
    launchers.end(0, 14, cluster.now)
    cluster.step()
    assert cluster.status.attempt == 0
    cluster.now += 1
    launchers.end(1, 13, cluster.now, message='{"class": "OutOfMemory"}')
    cluster.step()
    assert (cluster.status.attempts[0].reason, cluster.status.attempts[0].rank) == ("OutOfMemory", 1)


def test_a_victim_without_a_culprit_restarts_in_place_before_its_launcher_gives_up() -> None:
    cluster, launchers = training()
    cluster.nodes = {f"node-{index}": NodeView(f"node-{index}", ready=True) for index in (0, 1)}
    launchers.end(0, 14, cluster.now)
    cluster.step()
    wake = cluster.plan().wake_seconds
    assert wake is not None
    assert wake < 10
    cluster.now += wake
    cluster.step()
    assert "restarts in place" in message(cluster)


def test_a_lost_launcher_is_explained_by_its_node_as_before() -> None:
    cluster, launchers = training()
    cluster.nodes = {f"node-{index}": NodeView(f"node-{index}", ready=True) for index in (0, 1)}
    launchers.connected.discard(1)
    launchers.end(0, 14, cluster.now)
    cluster.step()
    cluster.now += 30
    cluster.step()
    assert cluster.status.attempt == 0
    cluster.nodes["node-1"] = NodeView("node-1", ready=False, silent_since=cluster.now - 40)
    cluster.step()
    assert (cluster.status.attempts[0].reason, cluster.status.attempts[0].node) == ("PodLost", "node-1")


LIES = [
    GangReport(0, 2**20, 2**20),
    GangReport(2**31, 2, 2),
    GangReport(0, 0, 0, tuple(RankEnd(2**20 - index, 0, 1) for index in range(16))),
    GangReport(0, 0, 2, (), ((2**20, 14), (5, 137), (0, 0))),
    GangReport(0, 2, 2, (RankEnd(0, 5, 137), RankEnd(1, 0, 0))),
    GangReport(0, 2, 2, (RankEnd(0, 3, 137, "x" * 4096, 1e300),)),
]


@pytest.mark.parametrize("lie", LIES)
def test_reports_about_others_change_nothing(lie: GangReport) -> None:
    cluster, launchers = training()
    launchers.lie = lie
    plan = cluster.plan()
    assert (plan.status.attempt, plan.delete, plan.create, plan.command) == (0, (), (), None)


def test_a_report_of_control_characters_makes_a_status_that_the_api_server_takes() -> None:
    cluster, launchers = training()
    launchers.lie = GangReport(0, 1, 2, (RankEnd(1, 0, 255, "\x1b[2J\x00" * 800, -1e300),))
    cluster.step()  # checks the status
    assert "\x1b" not in cluster.status.attempts[0].message


def wide(codes: list[int]) -> tuple[Cluster, Launchers]:
    """A gang whose ranks all ended with these codes at one moment; the clock of the first one's node is ahead."""
    cluster, launchers = trained(job(device={"type": "CPU", "count": len(codes)}, failurePolicy={"maxRestarts": 0}))
    cluster.nodes = {f"node-{index}": NodeView(f"node-{index}", ready=True) for index in range(len(codes))}
    for index, code in enumerate(codes):
        launchers.end(index, code, cluster.now - (index > 0), message='{"class": "OutOfMemory"}' if code == 13 else "")
    return cluster, launchers


def test_the_culprit_of_many_ranks_is_found_though_its_clock_is_ahead() -> None:
    cluster, _launchers = wide([13] + [14] * 19)
    cluster.step()
    assert (cluster.status.attempts[0].reason, cluster.status.attempts[0].rank) == ("OutOfMemory", 0)


def test_many_victims_without_a_living_rank_are_waited_for_no_longer() -> None:
    cluster, _launchers = wide([14] * 20)
    cluster.step()
    assert [found.reason for found in cluster.status.attempts] == ["CommunicationError"]


def test_every_ended_rank_of_many_counts_as_failed_and_keeps_its_log() -> None:
    cluster, _launchers = wide([14] * 20 + [137])
    decided = cluster.plan()
    assert (decided.status.ranks.failed, decided.status.phase, decided.delete) == (21, "Failed", ())


def suspend(cluster: Cluster, value: bool) -> None:
    policy = replace(cluster.job.spec.run_policy, suspend=value)
    cluster.job = replace(cluster.job, spec=replace(cluster.job.spec, run_policy=policy))
