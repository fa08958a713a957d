"""Prometheus metrics of jobs, from simulated jobs: pending time, restarts, their cost, and the outcome."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from resnetboost_api.status import Condition, Status
from resnetboost_operator.controller.job_metrics import JobMetrics
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.observed.pods import timestamp
from support.simulation import START, Cluster, job

JOB = {"job_name": "digits", "job_namespace": "default"}
Told = dict[str, dict[str, float]]


def record(cluster: Cluster, name: str = "digits") -> JobRecord:
    wanted = cluster.job
    return JobRecord(
        name, wanted.namespace, name, 1, False, wanted, cluster.status, problem="", created=timestamp(START)
    )


def read(text: bytes) -> Told:
    """{series: {value of its label other than the job's name, or '': value}}; the text must satisfy a strict parser."""
    told: Told = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            own = {key: value for key, value in sample.labels.items() if key not in JOB}
            assert sample.labels.items() >= JOB.items(), sample
            told.setdefault(sample.name, {})[" ".join(own.values())] = sample.value
    return told


def told(cluster: Cluster) -> Told:
    return read(JobMetrics(lambda: [record(cluster)]).text())


def test_a_new_job_is_pending_and_has_an_info_series() -> None:
    found = told(Cluster(job()))
    assert found["resnetboost_job_info"] == {"CPU resnet20 digits": 1}
    assert found["resnetboost_job_phase"] == {"Pending": 1}
    assert found["resnetboost_job_waiting"] == {"Pending": 1}
    assert found["resnetboost_job_creation_timestamp_seconds"] == {"": START}
    assert not {"resnetboost_job_stage_info", "resnetboost_job_goodput_ratio"} & found.keys()


def test_only_a_starting_gang_has_a_pending_reason() -> None:
    cluster = Cluster(job())
    cluster.settle()
    found = told(cluster)
    assert found["resnetboost_job_waiting"] == {"Starting": 1}
    assert found["resnetboost_job_ranks"] == {"desired": 2, "running": 0, "ready": 0, "failed": 0}
    assert "resnetboost_job_heartbeat_timestamp_seconds" not in found
    cluster.now += 30
    found = told(cluster.started())
    assert "resnetboost_job_waiting" not in found
    assert found["resnetboost_job_phase"] == {"Running": 1}
    assert found["resnetboost_job_stage_info"] == {"base Momentum": 1}
    assert found["resnetboost_job_ranks"]["running"] == 2
    assert found["resnetboost_job_heartbeat_timestamp_seconds"] == {"": START + 30}
    assert found["resnetboost_job_hang_timeout_seconds"] == {"": 600}


def test_the_cost_of_failures_is_counted_by_class() -> None:
    cluster = Cluster(job(failurePolicy={"maxRestarts": 3})).started()
    cluster.now += 40
    cluster.exit(1, 15)
    cluster.settle()
    first_end = cluster.now
    cluster.now += 100
    cluster.started()
    cluster.now += 60
    cluster.exit(0, 137)
    cluster.settle()
    found = told(cluster)
    assert found["resnetboost_job_restarts_total"] == {"": 2}
    assert found["resnetboost_job_restarts_left"] == {"": 1}
    assert found["resnetboost_job_recent_attempts"] == {"StorageError": 1, "Killed": 1}
    assert found["resnetboost_job_attempt_end_timestamp_seconds"] == {"StorageError": first_end, "Killed": cluster.now}
    assert found["resnetboost_job_attempt_seconds_total"] == {"": 100}
    assert found["resnetboost_job_goodput_ratio"] == {"": 0}
    assert found["resnetboost_job_productive_device_seconds_total"] == {"": 0}
    assert found["resnetboost_job_lost_device_seconds_total"] == {
        "Detection StorageError": 80,
        "Restart StorageError": 2 * 100,
        "Detection Killed": 120,
    }
    assert found["resnetboost_job_repeated_steps_total"] == {"": 2}
    assert "resnetboost_job_heartbeat_timestamp_seconds" not in found, "the heartbeat of a gang that is gone"


def test_a_failed_job_has_a_reason_and_no_ranks() -> None:
    cluster = Cluster(job()).started()
    cluster.exit(0, 12)
    cluster.settle()
    found = told(cluster)
    assert found["resnetboost_job_failed"] == {"NumericsError": 1}
    assert found["resnetboost_job_phase"] == {"Failed": 1}
    gone = {"waiting", "ranks", "heartbeat_timestamp_seconds", "hang_timeout_seconds", "restarts_left"}
    assert not {f"resnetboost_job_{name}" for name in gone} & found.keys()


def test_a_suspended_job_waits_for_nothing() -> None:
    cluster = Cluster(job()).started()
    cluster.job = replace(
        cluster.job, spec=replace(cluster.job.spec, run_policy=replace(cluster.job.spec.run_policy, suspend=True))
    )
    cluster.settle()
    found = told(cluster)
    assert found["resnetboost_job_phase"] == {"Suspended": 1}
    assert not {"resnetboost_job_waiting", "resnetboost_job_ranks"} & found.keys()


def test_a_job_in_a_queue_says_since_when() -> None:
    waits = Condition("Admitted", "False", "WaitingForQuota", "", timestamp(START + 7))
    cluster = Cluster(job())
    cluster.status = Status(phase="Queued", conditions=(waits,))
    assert told(cluster)["resnetboost_job_queued_timestamp_seconds"] == {"": START + 7}
    for phase in ("Running", "Suspended"):  # its label has no effect; it does not wait
        cluster.status = replace(cluster.status, phase=phase)
        assert "resnetboost_job_queued_timestamp_seconds" not in told(cluster)


def test_only_rank_table_jobs_have_a_rank_table_metric() -> None:
    cluster = Cluster(job(device={"type": "Ascend", "count": 2}))
    cluster.settle()
    for index in (0, 1):
        cluster.bind(index, "node-0")
    cluster.settle()
    assert told(cluster)["resnetboost_job_rank_table_ready"] == {"": 0}
    for index in (0, 1):
        cluster.allocate(index, index, f"10.0.0.{index}")
    cluster.settle()
    assert told(cluster)["resnetboost_job_rank_table_ready"] == {"": 1}
    assert "resnetboost_job_rank_table_ready" not in told(Cluster(job()).started())


def test_series_follow_the_deletion_and_change_of_a_job() -> None:
    clusters = {"one": Cluster(job()), "two": Cluster(job())}
    records = {name: record(cluster, name) for name, cluster in clusters.items()}
    metrics = JobMetrics(records.values)
    assert metrics.text().count(b'{job_name="two",') == metrics.text().count(b'{job_name="one",') > 3
    records["one"] = record(clusters["one"].started(), "one")
    text = metrics.text()
    assert b'phase{job_name="one",job_namespace="default",phase="Running"} 1.0\n' in text
    assert b'phase{job_name="one",job_namespace="default",phase="Pending"}' not in text
    del records["one"]
    assert b'"one"' not in metrics.text()
    assert b'"two"' in metrics.text()


def test_a_standby_exposes_no_jobs() -> None:
    leading, records = True, [record(Cluster(job()))]

    def jobs() -> Iterable[JobRecord]:
        return records if leading else ()

    metrics = JobMetrics(jobs)
    assert b"digits" in metrics.text()
    leading = False
    assert read(metrics.text()) == {}


@pytest.mark.parametrize("reason", ['a "quoted" one', "back\\slash", "two\nlines"])
def test_a_reason_may_be_any_text(reason: str) -> None:
    cluster = Cluster(job())
    cluster.settle()
    (running,) = [found for found in cluster.status.conditions if found.type == "Running"]
    cluster.status = replace(cluster.status, conditions=(replace(running, reason=reason),))
    assert told(cluster)["resnetboost_job_waiting"] == {reason: 1}


def test_an_unparsable_job_still_counts() -> None:
    strange = JobRecord("digits", "default", "digits", 1, False, job=None, status=Status(), problem="too new")
    found = read(JobMetrics(lambda: [strange]).text())
    assert found["resnetboost_job_phase"] == {"Pending": 1}
    assert "resnetboost_job_info" not in found
