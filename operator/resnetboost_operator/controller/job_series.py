"""The metric families of jobs: names, help texts, and how to read the samples from a job."""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from resnetboost_api.stage import Stage
from resnetboost_api.status import Goodput
from resnetboost_operator import lost_time
from resnetboost_operator import status as statuses
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.manifests import devices
from resnetboost_operator.observed import pods
from resnetboost_operator.status import ATTEMPTS_KEPT, RANK_TABLE_READY, STRAGGLING

PREFIX = "resnetboost_job"
# Phases of jobs that should not run (any more).
AT_REST = frozenset({"Suspended", "Complete", "Failed"})

Samples = Iterable[tuple[dict[str, str], float]]


class Family(msgspec.Struct, frozen=True):
    """A metric family; `samples` returns those of one job, without the labels that name the job."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Callable[[JobRecord], Samples]


def _info(record: JobRecord) -> Samples:
    if record.job is not None:
        spec = record.job.spec
        yield {"device_type": spec.device.type, "model": spec.model.name, "dataset": spec.dataset.name}, 1


def _phase(record: JobRecord) -> Samples:
    yield {"phase": record.status.phase}, 1


def _stage_info(record: JobRecord) -> Samples:
    if (stage := _stage(record)) is not None:
        yield {"stage": stage.name, "algorithm": stage.algorithm}, 1


def _created(record: JobRecord) -> Samples:
    if record.created:
        yield {}, pods.seconds(record.created)


def _waiting(record: JobRecord) -> Samples:
    running = statuses.condition(record.status, "Running")
    if record.status.phase in (*AT_REST, "Suspending"):
        return
    if running is None or running.status == "False":
        yield {"reason": running.reason if running is not None else record.status.phase}, 1


def _queued(record: JobRecord) -> Samples:
    since = statuses.queued_since(record.status)
    if since is not None:
        yield {}, pods.seconds(since)


def _failed(record: JobRecord) -> Samples:
    failed = statuses.condition(record.status, "Failed")
    if failed is not None and failed.status == "True":
        yield {"reason": failed.reason}, 1


def _ranks(record: JobRecord) -> Samples:
    ranks = record.status.ranks
    counts = {"desired": ranks.desired, "running": ranks.running, "ready": ranks.ready, "failed": ranks.failed}
    if record.status.phase not in AT_REST:
        yield from (({"state": state}, count) for state, count in counts.items())


def _restarts(record: JobRecord) -> Samples:
    yield {}, record.status.restarts


def _restarts_left(record: JobRecord) -> Samples:
    if record.job is not None and record.status.phase not in AT_REST:
        yield {}, max(0, record.job.spec.failure_policy.max_restarts - record.status.restarts_count_towards_max)


def _attempts(record: JobRecord) -> Samples:
    reasons = [found.reason for found in record.status.attempts]
    return (({"reason": reason}, reasons.count(reason)) for reason in dict.fromkeys(reasons))


def _attempt_ends(record: JobRecord) -> Samples:
    newest = {found.reason: found.end_time for found in record.status.attempts}
    return (({"reason": reason}, pods.seconds(time)) for reason, time in newest.items())


def _roll_backs(record: JobRecord) -> Samples:
    newest = {found.stage: found.end_time for found in record.status.attempts if found.rolled_back}
    return (({"stage": stage}, pods.seconds(time)) for stage, time in newest.items())


def _goodput(samples: Callable[[Goodput], Samples]) -> Callable[[JobRecord], Samples]:
    """Samples of the goodput, which is known once an attempt has ended."""
    return lambda record: () if record.status.goodput is None else samples(record.status.goodput)


def _ratio(found: Goodput) -> Samples:
    found = lost_time.complete(found)
    if found.attempt_seconds and (used := lost_time.used(found)):
        yield {}, found.productive_device_seconds / used


def _lost(found: Goodput) -> Samples:
    return (({"reason": lost.reason, "failure": lost.failure}, lost.device_seconds) for lost in found.lost)


def _straggling(record: JobRecord) -> Samples:
    stage = _stage(record)
    if stage is not None and stage.device_count > 1 and record.status.phase not in AT_REST:
        yield {}, statuses.is_true(record.status, STRAGGLING)


def _rank_table(record: JobRecord) -> Samples:
    stage = _stage(record)
    if stage is None or record.job is None or record.status.phase in AT_REST:
        return
    if devices.needs_rank_table(record.job.spec.device, stage):
        yield {}, statuses.is_true(record.status, RANK_TABLE_READY)


def _heartbeat(record: JobRecord) -> Samples:
    progress = record.status.progress
    if progress is None or record.status.phase in AT_REST or not statuses.is_current(progress, record.status):
        return
    if progress.heartbeat and progress.heartbeat_time is not None:
        yield {}, pods.seconds(progress.heartbeat_time)


def _hang_timeout(record: JobRecord) -> Samples:
    if record.job is not None and record.status.phase not in AT_REST:
        yield {}, record.job.spec.failure_policy.hang_timeout_seconds


def _stage(record: JobRecord) -> Stage | None:
    stages = record.job.spec.stages if record.job is not None else ()
    return next((stage for stage in stages if stage.name == record.status.stage), None)


FAMILIES = (
    Family(f"{PREFIX}_info", "gauge", "What a job trains and on what; always 1.", _info),
    Family(f"{PREFIX}_creation_timestamp_seconds", "gauge", "When the job was created.", _created),
    Family(f"{PREFIX}_phase", "gauge", "1 for the phase the job is in; the others are absent.", _phase),
    Family(f"{PREFIX}_stage_info", "gauge", "The stage that runs or ran last; always 1.", _stage_info),
    Family(f"{PREFIX}_waiting", "gauge", "1 while a job that should run does not, by why.", _waiting),
    Family(
        f"{PREFIX}_queued_timestamp_seconds",
        "gauge",
        "When a job began to wait for its queue's admission; only while it waits.",
        _queued,
    ),
    Family(f"{PREFIX}_failed", "gauge", "1 for a job that has failed for good, by why.", _failed),
    Family(f"{PREFIX}_ranks", "gauge", "Ranks of a job that should run, by state; one may count in several.", _ranks),
    Family(f"{PREFIX}_restarts_total", "counter", "Restarts of the gang, whatever the cause.", _restarts),
    Family(
        f"{PREFIX}_restarts_left", "gauge", "Failures the job survives: what is left of maxRestarts.", _restarts_left
    ),
    Family(
        f"{PREFIX}_recent_attempts",
        "gauge",
        f"Ended attempts by failure class, of the newest {ATTEMPTS_KEPT} that the status keeps.",
        _attempts,
    ),
    Family(
        f"{PREFIX}_attempt_end_timestamp_seconds",
        "gauge",
        f"When an attempt last ended with that failure class, of the newest {ATTEMPTS_KEPT} attempts.",
        _attempt_ends,
    ),
    Family(
        f"{PREFIX}_roll_back_timestamp_seconds",
        "gauge",
        "When a stage last went back because its training had diverged.",
        _roll_backs,
    ),
    Family(
        f"{PREFIX}_goodput_ratio",
        "gauge",
        "Share of productive device-seconds in those of devices held.",
        _goodput(_ratio),
    ),
    Family(
        f"{PREFIX}_attempt_seconds_total",
        "counter",
        "Time of all attempts that ended.",
        _goodput(lambda found: [({}, found.attempt_seconds)]),
    ),
    Family(
        f"{PREFIX}_productive_seconds_total",
        "counter",
        "Of that, what went into steps that count.",
        _goodput(lambda found: [({}, found.productive_seconds)]),
    ),
    Family(
        f"{PREFIX}_productive_device_seconds_total",
        "counter",
        "Device-seconds (ranks times seconds) that went into steps that count.",
        _goodput(lambda found: [({}, lost_time.complete(found).productive_device_seconds)]),
    ),
    Family(
        f"{PREFIX}_lost_device_seconds_total",
        "counter",
        "Device-seconds (ranks times seconds) that went into no step that counts, by cause and failure class.",
        _goodput(_lost),
    ),
    Family(
        f"{PREFIX}_repeated_steps_total",
        "counter",
        "Steps that were done twice, because no checkpoint had them.",
        _goodput(lambda found: [({}, found.repeated_steps)]),
    ),
    Family(f"{PREFIX}_rank_table_ready", "gauge", "Whether every pod has its rank table; only with one.", _rank_table),
    Family(
        f"{PREFIX}_straggling",
        "gauge",
        "Whether a rank has been slow for failurePolicy.straggler.forSeconds.",
        _straggling,
    ),
    Family(
        f"{PREFIX}_heartbeat_timestamp_seconds",
        "gauge",
        "When rank 0 last reported a step or an evaluated batch.",
        _heartbeat,
    ),
    Family(f"{PREFIX}_hang_timeout_seconds", "gauge", "hangTimeoutSeconds of a job that should run.", _hang_timeout),
)
