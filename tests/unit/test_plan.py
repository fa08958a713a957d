"""Planning on simulated clusters: creation, restarts, failures, deadlines, suspension, stages and completion."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from resnetboost_api import names
from resnetboost_api.job import Spec
from resnetboost_api.status import BestCheckpoint, Progress, Ranks
from resnetboost_operator import status
from resnetboost_operator.manifests import gang
from resnetboost_operator.observed import pods
from resnetboost_operator.status import from_dict, to_dict
from support.simulation import Cluster, job

TWO_STAGES = [
    {"name": "base", "algorithm": "Momentum", "epochs": 2, "localBatchSize": 8},
    {"name": "fine", "algorithm": "Momentum", "epochs": 1, "localBatchSize": 8},
]


def test_a_new_job_becomes_a_gang_of_one_pod_per_rank() -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 3}))
    cluster.settle()
    assert sorted(cluster.pods) == ["digits-base-0-0", "digits-base-0-1", "digits-base-0-2"]
    assert cluster.status.phase == "Starting"
    assert not status.is_true(cluster.status, "Running")


def test_running_is_true_only_after_the_first_step() -> None:
    cluster = Cluster(job())
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.status.phase == "Starting"
    cluster.train_to(1)
    cluster.settle()
    assert (cluster.status.phase, status.is_true(cluster.status, "Running")) == ("Running", True)


def test_a_settled_cluster_has_an_empty_plan() -> None:
    cluster = Cluster(job()).started()
    again = cluster.plan()
    assert (again.create, again.delete, again.status) == ((), (), cluster.status)


def test_a_starting_gang_reports_its_running_ranks() -> None:
    cluster = Cluster(job(device={"type": "CPU", "count": 3}))
    cluster.settle()
    cluster.run_all()
    for index in (1, 2):
        cluster.rank(index)["status"] = {"phase": "Pending"}
    cluster.settle()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert running.message == "1/3 ranks run; none has finished a step yet"


def test_rank_0_is_polled_while_it_runs() -> None:
    cluster = Cluster(job()).started()
    polled = cluster.plan().poll
    assert polled is not None
    assert (polled.index, polled.address) == (0, "127.1.0.1")


def test_all_ranks_done_completes_the_job_with_rank_0s_result() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(1, 0)
    cluster.settle()
    assert not status.is_terminal(cluster.status)
    cluster.exit(0, 0, "Completed", report={"class": "Succeeded", "top1": 0.98, "top5": 1.0})
    cluster.settle()
    assert cluster.status.phase == "Complete"
    assert status.is_true(cluster.status, "Complete")
    assert cluster.status.stages[0].top1 == 0.98


@pytest.mark.parametrize("polled", [True, False], ids=["polled early", "never polled"])
def test_rank_0s_termination_message_fills_in_loss_and_accuracy(polled: bool) -> None:
    cluster = Cluster(job())
    cluster.settle()
    cluster.run_all()
    if polled:
        cluster.train_to(3)
        cluster.progress = replace(cluster.progress or Progress(), loss=2.3, accuracy=0.43, total_steps=44, top1=0.5)
    cluster.settle()
    last = {"step": 44, "totalSteps": 44, "loss": 0.02, "accuracy": 0.99, "top1": 0.97}
    cluster.exit(1, 0, report={"class": "Succeeded", "step": 44, "totalSteps": 44, "loss": 9.0, "accuracy": 0.0})
    cluster.exit(0, 0, report={"class": "Succeeded", **last})
    cluster.settle()
    found = to_dict(cluster.status)["progress"]
    assert cluster.status.phase == "Complete"
    assert {name: found[name] for name in last} == last


def test_complete_stays_complete_when_its_pods_are_garbage_collected() -> None:
    cluster = Cluster(job()).started()
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.settle()
    cluster.pods.clear()
    cluster.settle()
    assert (cluster.status.phase, cluster.pods) == ("Complete", {})


def test_a_finished_rank_that_disappears_is_not_run_again() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(1, 0)
    cluster.settle()
    cluster.vanish(1)
    cluster.settle()
    assert (cluster.status.restarts, cluster.status.ranks.succeeded) == (0, "1")


def test_a_killed_rank_restarts_the_whole_gang_and_leaves_a_record() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 10})).started()
    cluster.train_to(120, checkpoint_step=100)
    cluster.exit(1, 137)
    cluster.step()
    record = cluster.status.attempts[0]
    assert (record.rank, record.exit_code, record.last_step, record.checkpoint_step) == (1, 137, 120, 100)
    assert (record.reason, record.node) == ("Killed", "node-1")
    assert (cluster.status.phase, cluster.status.restarts) == ("Restarting", 1)
    cluster.settle()
    assert not cluster.pods, "the new gang waits for the back-off"
    cluster.now += 10
    cluster.settle()
    assert sorted(cluster.pods) == ["digits-base-1-0", "digits-base-1-1"]


def test_the_new_gang_waits_until_the_old_one_is_gone() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.exit(0, 1)
    for _ in range(3):
        cluster.step()
    assert {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in cluster.pods.values()} == {"0"}
    cluster.finish_deletions()
    cluster.step()
    assert {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in cluster.pods.values()} == {"1"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [(10, "ConfigError"), (11, "DataError"), (12, "NumericsError")],
    ids=["configuration", "data", "numerics"],
)
def test_an_error_that_would_repeat_fails_the_job_at_once(code: int, reason: str) -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, code, report={"class": reason, "message": "dataset.path: no such file"})
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert (failed.reason, cluster.status.restarts) == (reason, 0)
    assert "no such file" in failed.message


def test_a_failure_message_keeps_its_remedy_with_long_paths() -> None:
    """The message contains the path twice, as for a data set's part and the folder of a class."""
    path = f"/mnt/{'a-deep-folder/' * 15}val"
    remedy = "use the folder that has train and val, each with a folder for each class"
    said = f"{path}: no folders in it, and {path} holds 0001.jpg, 0002.jpg and 49998 more; {remedy}"
    cluster = Cluster(job()).started()
    cluster.exit(0, 11, report={"class": "DataError", "message": said})
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.message.endswith(f"0001.jpg, 0002.jpg and 49998 more; {remedy}; a restart would end the same way")
    assert failed.message.count("/mnt/a-deep-folder/") == failed.message.count("a-deep-folder/val") == 2
    assert len(failed.message) < 420


def test_skipped_images_are_counted_once_over_ranks() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, 0, "Completed", report={"class": "Succeeded", "skipped": ["aa", "bb"]})
    cluster.exit(1, 0, "Completed", report={"class": "Succeeded", "skipped": ["bb", "cc"]})
    cluster.settle()
    assert cluster.status.stages[0].skipped_images == 3
    assert status.to_dict(cluster.status)["stages"][0]["skippedImages"] == 3


def test_a_reported_class_does_not_count_when_the_exit_code_contradicts_it() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, 137, report={"class": "ConfigError"})
    cluster.step()
    assert cluster.status.attempts[0].reason == "Killed"


ENDS = {
    "ConfigError": 10,
    "NumericsError": 12,
    "OutOfMemory": 13,
    "StorageError": 15,
    "Killed": 137,
    "InternalError": 1,
    "PodLost": None,
    "CommunicationError": 14,
    "Interrupted": 16,
}


@pytest.mark.parametrize(("cause", "victim"), pairwise(ENDS))
def test_the_cause_of_a_failure_is_found_by_its_class_though_others_ended_before(cause: str, victim: str) -> None:
    cluster = Cluster(job()).started()
    for index, name in ((0, victim), (1, cause)):
        code = ENDS[name]
        if code is None:
            cluster.vanish(index)
        else:
            cluster.exit(index, code, report={"class": name})
        cluster.now += 1
    cluster.step()
    assert (cluster.status.attempts[0].rank, cluster.status.attempts[0].reason) == (1, cause)


def test_of_two_errors_of_the_job_the_first_is_its_reason() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(1, 10, report={"class": "ConfigError"})
    cluster.now += 1
    cluster.exit(0, 11, report={"class": "DataError"})
    cluster.step()
    assert (cluster.status.attempts[0].rank, cluster.status.attempts[0].reason) == (1, "ConfigError")
    cluster = Cluster(job()).started()
    cluster.exit(1, 11, report={"class": "DataError"})
    cluster.now += 1
    cluster.exit(0, 10, report={"class": "ConfigError"})
    cluster.step()
    assert (cluster.status.attempts[0].rank, cluster.status.attempts[0].reason) == (1, "DataError")


def test_a_communication_error_waits_for_the_rank_that_caused_it() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, 14, report={"class": "CommunicationError"})
    waiting = cluster.step()
    assert (cluster.status.restarts, waiting.wake_seconds) == (0, 5.0)
    cluster.exit(1, 137, "OOMKilled")
    cluster.step()
    assert (cluster.status.attempts[0].rank, cluster.status.attempts[0].reason) == (1, "OutOfMemory")


def test_a_communication_error_alone_counts_after_a_while() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, 14, report={"class": "CommunicationError"})
    cluster.step()
    cluster.now += 5
    cluster.step()
    assert cluster.status.attempts[0].reason == "CommunicationError"


def test_a_budget_that_is_used_up_fails_the_job() -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 1, "backoffSeconds": 0}))
    for _ in range(2):
        cluster.started()
        cluster.train_to(cluster.status.attempt * 10 + 5)
        cluster.exit(0, 137)
        cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "MaxRestartsExceeded"
    assert len(cluster.status.attempts) == 2


def test_a_lost_pod_restarts_at_once_without_using_the_budget() -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 0, "backoffSeconds": 10})).started()
    cluster.vanish(1)
    cluster.settle()
    assert (cluster.status.restarts, cluster.status.restarts_count_towards_max) == (1, 0)
    assert cluster.status.attempts[0].reason == "PodLost"
    assert len(cluster.gang()) == 2


def test_repeatedly_lost_pods_back_off() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 10}))
    delays = []
    for _ in range(3):
        cluster.started()
        cluster.vanish(0)
        delays.append(cluster.step().wake_seconds)
        cluster.finish_deletions()
        cluster.now += 40
    assert delays == [0, 20, 40]


def test_the_same_internal_error_at_the_same_step_twice_fails_the_job() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0}))
    for _ in range(2):
        cluster.started()
        cluster.train_to(7)
        cluster.exit(0, 1, report={"class": "InternalError", "step": 7})
        cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "RepeatedFailure"


def test_a_storage_that_is_away_while_data_is_loaded_is_waited_for() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0, "maxRestarts": 3}))
    for attempt in range(3):
        cluster.settle()
        cluster.run_all()
        cluster.load()
        cluster.settle()
        cluster.exit(0, 15, report={"class": "StorageError"})
        cluster.settle()
        assert cluster.status.restarts == attempt + 1
    assert status.condition(cluster.status, "Failed") is None


def test_back_off_doubles_up_to_its_limit_and_a_stable_attempt_resets_it() -> None:
    policy = {"backoffSeconds": 10, "maxBackoffSeconds": 25, "stableAfterSeconds": 600, "maxRestarts": 99}
    cluster = Cluster(job(failurePolicy=policy))
    delays = []
    for ran in (0, 0, 0, 600, 0):
        cluster.started()
        cluster.now += ran
        cluster.train_to(int(cluster.now))
        cluster.exit(0, 137)
        delays.append(cluster.step().wake_seconds)
        cluster.finish_deletions()
        cluster.now += 25
    assert delays == [10, 20, 25, 10, 10]


def test_a_gang_that_never_trains_is_restarted_after_the_startup_deadline() -> None:
    cluster = Cluster(job(runPolicy={"startupDeadlineSeconds": 60}))
    cluster.settle()
    cluster.run_all()
    assert cluster.step().wake_seconds == 60
    cluster.now += 60
    cluster.step()
    assert cluster.status.attempts[0].reason == "StartupDeadlineExceeded"


def test_a_gang_without_heartbeat_is_restarted_as_hung_with_its_last_step() -> None:
    cluster = Cluster(job(failurePolicy={"hangTimeoutSeconds": 30})).started()
    cluster.train_to(50)
    cluster.step()
    cluster.now += 29
    cluster.step()
    assert cluster.status.restarts == 0
    cluster.now += 1
    cluster.step()
    assert (cluster.status.attempts[0].reason, cluster.status.attempts[0].last_step) == ("Hang", 50)


def test_progress_of_an_earlier_attempt_is_ignored() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(500, checkpoint_step=500)
    cluster.exit(1, 137)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.status.phase == "Starting", "the old gang's steps are not the new one's"


def test_suspend_lets_every_rank_save_and_records_the_step() -> None:
    cluster = Cluster(job()).started()
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, True))
    first = cluster.step()
    assert {deletion.grace_seconds for deletion in first.delete} == {60}
    cluster.exit(0, 16, report={"class": "Interrupted", "step": 33, "checkpointStep": 33})
    cluster.step()
    cluster.settle()
    assert (cluster.status.phase, cluster.pods) == ("Suspended", {})
    assert status.is_true(cluster.status, "Suspended")
    record = cluster.status.attempts[0]
    assert (record.reason, record.checkpoint_step, cluster.status.restarts) == ("Suspended", 33, 0)


def test_a_resumed_job_goes_on_with_a_new_attempt_and_a_new_active_time() -> None:
    cluster = Cluster(job(runPolicy={"activeDeadlineSeconds": 100})).started()
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, True))
    cluster.settle()
    cluster.now += 1000
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, False))
    cluster.settle()
    assert not status.is_true(cluster.status, "Suspended")
    assert sorted(cluster.pods) == ["digits-base-1-0", "digits-base-1-1"]


def test_suspending_a_starting_gang_keeps_its_checkpoint() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(30, checkpoint_step=23)
    cluster.exit(1, 137)
    cluster.settle()
    cluster.progress = None
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, True))
    cluster.settle()
    stopped = status.condition(cluster.status, "Suspended")
    assert stopped is not None
    assert "step 23" in stopped.message


def test_a_checkpoint_outlives_the_record_of_its_attempt() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0, "maxRestarts": 1000})).started()
    cluster.train_to(30, checkpoint_step=23)
    for _ in range(status.ATTEMPTS_KEPT + 1):
        cluster.settle()
        cluster.run_all()
        cluster.exit(1, 137)
        cluster.settle()
        cluster.progress = None
    assert all(record.checkpoint_step is None for record in cluster.status.attempts)
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, True))
    cluster.settle()
    stopped = status.condition(cluster.status, "Suspended")
    assert stopped is not None
    assert stopped.message == "stopped on request; the newest checkpoint is of step 23"
    assert to_dict(cluster.status)["stages"][0]["checkpointStep"] == 23


def ended_unheard(last_step: int, checkpoint_step: int, step_seconds: float | None = 1.0) -> Cluster:
    """A gang killed after more steps than were last reported, and its successor."""
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(last_step, checkpoint_step)
    cluster.progress = replace(cluster.progress or Progress(), step_seconds=step_seconds, resumed_step=0)
    cluster.now += 200
    cluster.settle()
    cluster.exit(1, 137)
    cluster.settle()
    cluster.run_all()
    return cluster


@pytest.mark.parametrize(
    ("heard", "resumed", "expected"),
    [
        ((89, 55), 89, (89, 89, 89, 0)),
        ((55, 55), 89, (89, 89, 89, 0)),
        ((89, 55), 60, (89, 60, 60, 29)),
        ((89, 55), 40, (89, 40, 40, 49)),
        ((89, 55), 55, (89, 55, 55, 34)),
    ],
    ids=["more was saved", "more was trained", "a little more was saved", "the newest was damaged", "as it was heard"],
)
def test_the_step_that_a_successor_resumes_from_corrects_the_record_and_the_goodput(
    heard: tuple[int, int], resumed: int, expected: tuple[int, int, int, int]
) -> None:
    cluster = ended_unheard(*heard)
    before = cluster.status.goodput
    assert before is not None
    cluster.train_to(resumed, resumed)
    cluster.progress = replace(cluster.progress or Progress(), resumed_step=resumed)
    cluster.settle()
    record, account = cluster.status.attempts[0], cluster.status.goodput
    assert account is not None
    found = (record.last_step, record.checkpoint_step, account.productive_seconds, account.repeated_steps)
    assert found == expected
    assert account.attempt_seconds == before.attempt_seconds
    lost = sum(loss.device_seconds for loss in account.lost)
    assert lost == 2 * (account.attempt_seconds - account.productive_seconds)
    cluster.train_to(resumed + 10, resumed + 10)
    cluster.progress = replace(cluster.progress, resumed_step=resumed)
    cluster.settle()
    assert cluster.status.goodput == account, "once"


def test_without_a_step_time_no_time_counts_as_productive() -> None:
    cluster = ended_unheard(55, 55, step_seconds=None)
    cluster.train_to(89, 89)
    cluster.progress = replace(cluster.progress or Progress(), resumed_step=89)
    cluster.settle()
    assert cluster.status.goodput is not None
    assert cluster.status.attempts[0].checkpoint_step == 89
    assert (cluster.status.goodput.productive_seconds, cluster.status.goodput.percent) == (0, 0)


def test_steps_of_an_earlier_jobs_checkpoint_do_not_count_as_trained() -> None:
    cluster = Cluster(job()).started()
    cluster.train_to(510, 510)
    cluster.progress = replace(cluster.progress or Progress(), step_seconds=1.0, resumed_step=500)
    cluster.now += 200
    cluster.settle()
    cluster.exit(1, 137)
    cluster.settle()
    assert cluster.status.goodput is not None
    assert cluster.status.goodput.productive_seconds == 10


def test_a_killed_ranks_log_is_kept_in_whole_lines() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(1, 137)
    lines = [f"2026-01-01 INFO step {number} of many, and so on" for number in range(60)]
    ended = cluster.rank(1)["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["message"] = "\n".join(lines)[-2048:]  # as kubelet truncates it
    cluster.step()
    first, *kept = cluster.status.attempts[0].message.splitlines()
    assert first == "killed by signal 9; the end of its log:"
    assert kept == lines[-len(kept) :]
    assert len(kept) > 10


def without_claim() -> Cluster:
    """A job without a claim, 117 steps into its only stage."""
    cluster = Cluster(job(checkpoint={}, failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(117, checkpoint_step=117)
    cluster.now += 600
    cluster.settle()
    return cluster


def test_suspending_without_a_claim_reports_the_lost_steps() -> None:
    cluster = without_claim()
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, True))
    first = cluster.step()
    warning = next(event for event in first.events if event.type == "Warning")
    assert (warning.reason, "117 steps" in warning.message) == ("ProgressLost", True)
    assert "checkpoint.claimName" in warning.message
    cluster.exit(0, 16, report={"class": "Interrupted", "step": 118, "checkpointStep": 118})
    cluster.settle()
    stopped = status.condition(cluster.status, "Suspended")
    assert stopped is not None
    assert "118 steps" in stopped.message
    assert "begins again at step 0" in stopped.message
    record, account = cluster.status.attempts[0], cluster.status.goodput
    assert (record.last_step, record.checkpoint_step) == (118, None)
    assert account is not None
    assert (account.productive_seconds, account.repeated_steps) == (0, 118)
    assert cluster.events.count("ProgressLost") == 1


def test_restarting_without_a_claim_reports_the_lost_steps() -> None:
    cluster = without_claim()
    cluster.exit(1, 137)
    wanted = cluster.step()
    assert "loses 117 steps with its pods" in wanted.events[0].message
    assert cluster.status.attempts[0].checkpoint_step is None


def test_a_finished_job_without_a_claim_has_no_checkpoint() -> None:
    cluster = without_claim()
    for index in (0, 1):
        cluster.exit(index, 0, report={"class": "Succeeded", "step": 120, "checkpointStep": 120})
    cluster.settle()
    assert cluster.status.phase == "Complete"
    assert cluster.status.progress is not None
    assert cluster.status.progress.checkpoint_step is None


def test_pods_waited_for_are_named() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.exit(0, 137)
    cluster.step()
    cluster.step()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert "waiting for digits-base-0-0 and digits-base-0-1 of an earlier attempt to end" in running.message
    cluster.job = replace(cluster.job, spec=_suspended(cluster.job.spec, True))
    cluster.step()
    running = status.condition(cluster.status, "Running")
    assert running is not None
    assert "waiting for digits-base-0-0 and digits-base-0-1 to stop" in running.message


def test_a_job_created_suspended_creates_nothing() -> None:
    cluster = Cluster(job(runPolicy={"suspend": True}))
    cluster.settle()
    assert (cluster.status.phase, cluster.created, cluster.status.attempts) == ("Suspended", [], ())


def test_the_active_deadline_fails_the_job() -> None:
    cluster = Cluster(job(runPolicy={"activeDeadlineSeconds": 100})).started()
    cluster.now += 100
    cluster.settle()
    failed = status.condition(cluster.status, "Failed")
    assert failed is not None
    assert failed.reason == "DeadlineExceeded"
    assert not cluster.pods


def test_stages_run_one_after_another_with_attempts_that_never_repeat() -> None:
    cluster = Cluster(job(stages=TWO_STAGES)).started()
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.settle()
    assert {"digits-fine-1-0", "digits-fine-1-1"} <= set(cluster.pods)
    assert [stage.state for stage in cluster.status.stages] == ["Complete", "Running"]


SMALLER, LARGER = ({**stage, "deviceCount": count} for stage, count in zip(TWO_STAGES, (2, 4), strict=True))
two_sizes = pytest.mark.parametrize("stages", [(LARGER, SMALLER), (SMALLER, LARGER)], ids=["to fewer", "to more"])


def sized(stages: tuple[dict[str, Any], ...]) -> Cluster:
    """A job of six devices in which every stage uses fewer."""
    return Cluster(job(device={"type": "CPU", "count": 6}, stages=list(stages), checkpoint={"claimName": "data"}))


@two_sizes
def test_a_stage_of_another_size_has_a_gang_of_its_own_size(stages: tuple[dict[str, Any], ...]) -> None:
    first, second = (stage["deviceCount"] for stage in stages)
    cluster = sized(stages).started()
    assert cluster.status.ranks == Ranks(desired=first, running=first, ready=first)
    for index in range(first):
        assert cluster.status.stage == stages[0]["name"]
        cluster.exit(index, 0)
        cluster.step()
    assert (cluster.status.stage, cluster.status.ranks) == (stages[1]["name"], Ranks(desired=second))
    cluster.settle()
    places = [pod["metadata"]["labels"][names.LABEL_INDEX] for pod in cluster.gang()]
    assert sorted(places) == [str(index) for index in range(second)]
    assert {variable(pod, names.ENV_WORLD_SIZE) for pod in cluster.gang()} == {str(second)}


@two_sizes
def test_only_its_own_ranks_complete_a_stage_of_another_size(stages: tuple[dict[str, Any], ...]) -> None:
    first, second = (stage["deviceCount"] for stage in stages)
    cluster = sized(stages).started()
    for index in range(first):
        cluster.exit(index, 0)
    cluster.started()
    for index in range(second):
        assert not status.is_terminal(cluster.status)
        cluster.exit(index, 0)
        cluster.settle()
    assert (cluster.status.phase, cluster.status.ranks.succeeded) == ("Complete", f"0-{second - 1}")


def test_a_lost_rank_of_a_smaller_stage_restarts_as_many_as_the_stage_has() -> None:
    cluster = sized((LARGER, SMALLER)).started()
    for index in range(4):
        cluster.exit(index, 0)
    cluster.started()
    cluster.vanish(1)
    cluster.settle()
    assert cluster.status.ranks.desired == len(cluster.gang()) == 2
    assert sorted(stage.attempts for stage in cluster.status.stages) == [1, 2]


def test_a_pod_with_an_index_beyond_the_stage_does_not_count() -> None:
    cluster = sized((LARGER, SMALLER)).started()
    for index in range(4):
        cluster.exit(index, 0)
    cluster.started()
    cluster.exit(0, 0)
    own = pods.view(cluster.rank(0))
    cluster.tombstones.append(replace(own, index=3))
    cluster.settle()
    assert (cluster.status.ranks.succeeded, status.is_terminal(cluster.status)) == ("0", False)


def test_small_stages_share_a_node_and_one_rank_needs_no_coordinator() -> None:
    few = [{**TWO_STAGES[0], "deviceCount": 2}, {**TWO_STAGES[1], "deviceCount": 1}]
    wanted = job(device={"type": "CPU", "count": 8, "perNode": 4}, stages=few)
    part, one = (gang.gang(wanted, stage, 0) for stage in wanted.spec.stages)
    assert [found["kind"] for found in part] == ["Secret", "ConfigMap", "Service", "Pod", "Pod"]
    assert {pod["metadata"]["labels"][names.LABEL_NODE_GROUP] for pod in part[3:]} == {"0"}
    assert [found["kind"] for found in one] == ["Secret", "ConfigMap", "Pod"]


def variable(pod: dict[str, Any], name: str) -> str | None:
    """Value of an environment variable of a pod's container."""
    found = pod["spec"]["containers"][0]["env"]
    return next((entry.get("value") for entry in found if entry["name"] == name), None)


def test_a_failure_restarts_its_stage_and_never_a_finished_one() -> None:
    cluster = Cluster(job(stages=TWO_STAGES, failurePolicy={"backoffSeconds": 0})).started()
    for index in (0, 1):
        cluster.exit(index, 0)
    cluster.started()
    cluster.exit(0, 137)
    cluster.settle()
    assert {pod["metadata"]["labels"][names.LABEL_STAGE] for pod in cluster.gang()} == {"fine"}
    assert [stage.attempts for stage in cluster.status.stages] == [1, 2]


def test_failure_records_are_bounded() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0, "maxRestarts": 1000}))
    for step in range(25):
        cluster.started()
        cluster.train_to(step + 2)
        cluster.exit(0, 137, report={"message": "x" * 3000})
        cluster.settle()
    assert len(cluster.status.attempts) == 20
    assert max(len(record.message) for record in cluster.status.attempts) <= 1024
    assert cluster.status.attempts[-1].attempt == 24
    cluster.started()
    cluster.bind(0, "n" * 300)
    cluster.exit(0, 137)
    cluster.step()
    assert cluster.status.attempts[-1].node == "n" * 253, "as long as a name in Kubernetes may be"


def test_status_survives_its_kubernetes_form() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, 137)
    cluster.step()
    assert from_dict(to_dict(cluster.status)) == cluster.status


@pytest.mark.parametrize(("indexes", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2,5"), ([7, 0], "0,7")], ids=str)
def test_indexes_are_written_as_an_indexed_job_does(indexes: list[int], text: str) -> None:
    assert status.format_indexes(indexes) == text
    assert status.parse_indexes(text) == frozenset(indexes)


def _suspended(spec: Spec, value: bool) -> Spec:
    return replace(spec, run_policy=replace(spec.run_policy, suspend=value))


EARLY = {"step": 24, "reason": "TargetReached", "message": "top1 0.98 reached the target 0.9"}
BEST = {"step": 24, "metric": "top1", "value": 0.98}


def stopped_early(stages: Sequence[dict[str, Any]]) -> Cluster:
    """A job whose first stage has ended at its target."""
    cluster = Cluster(job(stages=list(stages))).started()
    cluster.train_to(23)
    cluster.settle()
    report = {"class": "Succeeded", "step": 24, "totalSteps": 100, "top1": 0.98, "best": BEST, "stoppedEarly": EARLY}
    cluster.exit(1, 0)
    cluster.exit(0, 0, "Completed", report=report)
    cluster.settle()
    return cluster


def test_a_stage_that_its_target_ended_is_complete_with_the_reason_and_the_next_one_begins() -> None:
    cluster = stopped_early(TWO_STAGES)
    first, second = to_dict(cluster.status)["stages"]
    assert (first["state"], first["stoppedEarly"], first["best"]) == ("Complete", EARLY, BEST)
    assert (second["state"], second.get("best")) == ("Running", None)
    assert {"digits-fine-1-0", "digits-fine-1-1"} <= set(cluster.pods)
    assert cluster.events.count("StoppedEarly") == 1


def test_the_last_stage_that_its_target_ended_completes_the_job_at_the_step_it_made() -> None:
    cluster = stopped_early(TWO_STAGES[:1])
    assert status.is_true(cluster.status, "Complete")
    progress = cluster.status.progress
    assert progress is not None
    assert (progress.step, progress.percent, progress.total_steps) == (24, 100, 100)
    assert [found for found in cluster.events if found in ("StoppedEarly", "Complete")] == ["StoppedEarly", "Complete"]


def test_the_best_checkpoint_is_in_the_status_while_it_trains_and_after_a_restart() -> None:
    cluster = Cluster(job(failurePolicy={"backoffSeconds": 0})).started()
    cluster.train_to(30)
    assert cluster.progress is not None
    cluster.progress = replace(cluster.progress, best=BestCheckpoint(step=24, metric="top1", value=0.98))
    cluster.settle()
    cluster.exit(0, 1)
    cluster.settle()
    assert cluster.status.attempt == 1
    assert to_dict(cluster.status)["stages"][0]["best"] == BEST
