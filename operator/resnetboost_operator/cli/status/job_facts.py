"""Facts about a job beyond its progress, as labelled sentences."""

from collections.abc import Iterator, Mapping, Sequence

from resnetboost_api import names
from resnetboost_api.status import Attempt, Condition, Goodput, PreflightResult, Progress, StageStatus, Status
from resnetboost_operator import lost_time, readable
from resnetboost_operator import status as statuses
from resnetboost_operator.cli.status import job_view
from resnetboost_operator.cli.status.job_view import JobView
from resnetboost_operator.cli.view import text
from resnetboost_operator.job import Job
from resnetboost_operator.kubeclient.reader import Event
from resnetboost_operator.observed import pods
from resnetboost_operator.planning.faults import preflight
from resnetboost_operator.planning.pending import PASSING, UNHEARD, UNHEARD_TRAINING

Fact = tuple[str, str]

ATTEMPTS_SHOWN = 8
EVENTS_SHOWN = 6


def facts(view: JobView, now: float) -> Iterator[Fact]:
    """All facts: what runs first, then its costs, then its history."""
    status = view.status
    if not status.stage:
        return
    if not view.is_over:
        yield "ranks", _ranks(view)
    if (admitted := statuses.condition(status, statuses.ADMITTED)) is not None and not view.is_over:
        yield "queue", _queue(admitted, view, now)
    if (found := view.progress) is not None:
        yield from _of_progress(found, view, now)
    if (table := statuses.condition(status, statuses.RANK_TABLE_READY)) is not None and not view.is_over:
        yield "rank table", _rank_table(table)
    if status.preflight is not None:
        yield "preflight", _preflight(status.preflight)
    yield "restarts", _restarts(status, view.job)
    if not view.is_over:
        yield from _excluded(status, now)
    for back in status.roll_backs:
        yield "went back", text.roll_back(back)
    if status.goodput is not None:
        yield from _goodput(status.goodput)
    yield from attempts(status.attempts, now)


def stages(status: Status, algorithms: Mapping[str, str]) -> Iterator[Fact]:
    """The state or result of each stage."""
    for stage in status.stages:
        yield f"stage {stage.name}", text.SEPARATOR.join(_stage(stage, status, algorithms))


def _stage(stage: StageStatus, status: Status, algorithms: Mapping[str, str]) -> Iterator[str]:
    # A stage that was evicted is still that of the job, but nothing of it runs.
    yield "Queued" if (stage.state, status.phase) == ("Running", "Queued") else stage.state
    if stage.name in algorithms:
        yield algorithms[stage.name]
    progress = text.progress_of(stage, status)
    if stage.state == "Complete" or progress is None:
        yield from text.result(stage)
    else:
        yield from text.position(progress)
        yield from text.figures(progress, running=status.phase == "Running")
    yield from text.skipped(stage)
    if stage.attempts:
        yield readable.plural(stage.attempts, "attempt")


def _reason(status: Status, kind: str) -> str:
    found = statuses.condition(status, kind)
    return found.reason if found is not None else ""


def _ranks(view: JobView) -> str:
    status, found = view.status, view.status.ranks
    parts = [f"{found.running}/{found.desired} run", f"{found.ready} ready"]
    if found.failed:
        parts.append(f"{found.failed} failed")
    if found.succeeded:
        parts.append(f"done: {found.succeeded}")
    if (whole := _whole(view)) is not None:
        parts.append(f"with the work of {whole}")
    if status.placeable_devices is not None:
        parts.append(f"room for {status.placeable_devices}")
    return text.SEPARATOR.join(parts)


def _whole(view: JobView) -> int | None:
    """The number of ranks that the current stage is defined by, None if it has as many."""
    stages = view.job.spec.stages if view.job is not None else ()
    whole = next((stage.device_count for stage in stages if stage.name == view.status.stage), None)
    return whole if view.status.device_count not in (None, whole) else None


def _of_progress(found: Progress, view: JobView, now: float) -> Iterator[Fact]:
    if view.job is not None and not view.job.spec.checkpoint.outlives_pods:
        if not view.is_over:
            yield "checkpoint", "none: without checkpoint.claimName or url they are lost with the pods"
    elif found.checkpoint_step is not None:
        yield "checkpoint", f"step {found.checkpoint_step}"
    if view.status.phase != "Running":
        return
    if found.slowest_rank is not None and view.status.ranks.desired > 1:
        seconds = found.slowest_compute_seconds
        compute = f", {readable.quantity(1000 * seconds)} ms to compute a step" if seconds is not None else ""
        yield "slowest", f"rank {found.slowest_rank}{compute}"
    yield from (("slow", text.slow(one, now)) for one in found.stragglers)
    if found.heartbeat_time is not None:
        yield "heartbeat", f"{_ago(found.heartbeat_time, now)}{_hang(view.job)}"


def _hang(job: Job | None) -> str:
    if job is None:
        return ""
    limit = readable.duration(job.spec.failure_policy.hang_timeout_seconds)
    return f", after {limit} without one the gang restarts"


def _queue(admitted: Condition, view: JobView, now: float) -> str:
    """The queue, and what it says; of a queued job the message stands at the top of the page."""
    since, message = statuses.queued_since(view.status), " ".join(admitted.message.split())
    if since is not None:
        state = f"{admitted.reason} for {readable.duration(now - pods.seconds(since))}"
    elif admitted.status == "True" and admitted.reason == statuses.ADMITTED:
        state = f"admitted {_ago(admitted.last_transition_time, now)}"
    else:
        state = f"{admitted.reason}: {message}"
    return text.SEPARATOR.join(filter(None, [view.queue, state]))


def _rank_table(found: Condition) -> str:
    return f"{'ready' if found.status == 'True' else found.reason}: {' '.join(found.message.split())}"


def _restarts(status: Status, job: Job | None) -> str:
    if job is None:
        return str(status.restarts)
    used, limit = status.restarts_count_towards_max, job.spec.failure_policy.max_restarts
    return f"{status.restarts}, of which {used} count towards maxRestarts ({limit})"


def _excluded(status: Status, now: float) -> Iterator[Fact]:
    """Each node that the next attempts avoid, for how long and why."""
    for found in status.excluded_nodes:
        left = pods.seconds(found.until) - now
        if left > 0:
            yield "avoids", f"{found.node} for {readable.duration(left)}: {' '.join(found.reason.split())}"


def _preflight(found: PreflightResult) -> str:
    """What the newest preflight found."""
    verdict = f"named {preflight.listed(found)}" if found.suspects else "named no rank"
    parts = [f"attempt {found.attempt}", f"{found.seconds:g} s", verdict]
    if found.compute_median is not None:
        parts.append(f"{readable.quantity(found.compute_median)} GFLOP/s")
    if found.collective_rate is not None:
        parts.append(f"all-reduce {readable.quantity(found.collective_rate)} MB/s")
    return text.SEPARATOR.join(parts)


def _goodput(found: Goodput) -> Iterator[Fact]:
    """The share of time that went into steps that count, and what the rest was lost to: by cause, then by failure."""
    if found.attempt_seconds:
        spent = f"{found.percent} % of {readable.duration(found.attempt_seconds)} in attempts that ended"
        again = f"{readable.plural(found.repeated_steps, 'step')} done twice" if found.repeated_steps else ""
        yield "goodput", text.SEPARATOR.join(filter(None, [spent, lost_time.summary(found), again]))
    if failures := lost_time.by_failure(found):
        cost = ", ".join(f"{failure} {readable.duration(seconds)}" for failure, seconds in failures.items())
        yield "failures", f"cost device time: {cost}"
    if waited := lost_time.by_cause(found).get(lost_time.QUEUEING):
        yield "queueing", f"{readable.duration(waited)} of device time, beside goodput"


def attempts(found: Sequence[Attempt], now: float) -> Iterator[Fact]:
    """How the newest attempts ended, newest first; the job's status has more."""
    for ended in reversed(found[-ATTEMPTS_SHOWN:]):
        yield f"attempt {ended.attempt}", text.SEPARATOR.join(_attempt(ended, now))
    if len(found) > ATTEMPTS_SHOWN:
        yield "", f"{len(found) - ATTEMPTS_SHOWN} more in status.attempts"


def _attempt(ended: Attempt, now: float) -> Iterator[str]:
    yield text.attempt(ended)
    if ended.checkpoint_step is not None:
        yield f"checkpoint of step {ended.checkpoint_step}"
    yield _ago(ended.end_time, now)


def events(found: Sequence[Event] | str, now: float) -> Iterator[Fact]:
    """The newest events, newest first; or why they could not be read."""
    if isinstance(found, str):
        yield "events", " ".join(job_view.legible(f"could not be read: {found}").split())
        return
    for event in reversed(found[-EVENTS_SHOWN:]):
        sentence = " ".join(job_view.legible(f"{event.reason}: {event.message}").split())
        moment = event.last_timestamp or event.event_time
        yield "event", f"{sentence} ({_ago(moment, now)})" if moment else sentence


def _ago(moment: str, now: float) -> str:
    return f"{readable.duration(now - pods.seconds(moment))} ago"


def advice(view: JobView) -> tuple[str, ...]:
    """The command to type next if something is wrong, as words; () if there is none."""
    status, space = view.status, ("-n", view.namespace)
    running = statuses.condition(status, "Running")
    if view.deleting or statuses.is_true(status, "Complete"):
        return ()
    if not status.stage or view.silence is not None:
        return "resnetboost", "doctor", "--cluster"
    if status.phase == "Failed":
        return _after_failure(view)
    if status.phase == "Suspended":
        resumed = """'{"spec": {"runPolicy": {"suspend": false}}}'"""
        return ("kubectl", "patch", "rbj", view.name, *space, "--type", "merge", "-p", resumed) if view.suspend else ()
    if status.phase == "Queued" and _reason(status, statuses.ADMITTED) == "PriorityUnknown":
        return "kubectl", "get", "workloadpriorityclasses"
    if status.phase == "Queued":
        return "kubectl", "describe", "workloads.kueue.x-k8s.io", *space, "-l", f"{names.LABEL_JOB}={view.name}"
    if running is None or (running.status, running.reason) == ("True", "Training") or running.reason in PASSING:
        return ()
    if running.reason in (UNHEARD[0], UNHEARD_TRAINING[0]):
        return "kubectl", "get", "networkpolicies", *space
    if running.reason == "NoGangScheduler" or (running.reason == "PodsRefused" and "quota" not in running.message):
        return "kubectl", "describe", "rbj", *space, view.name
    if running.reason == "PodsRefused":
        return "kubectl", "describe", "resourcequotas", *space
    return "kubectl", "describe", "pods", *space, "-l", f"{names.LABEL_JOB}={view.name}"


def _after_failure(view: JobView) -> tuple[str, ...]:
    """The command for the logs: pods that ended by themselves are kept, unless cleanPodPolicy says otherwise."""
    last = view.status.attempts[-1] if view.status.attempts else None
    kept = view.job is not None and view.job.spec.run_policy.clean_pod_policy != "All"
    if last is not None and last.rank is not None and last.exit_code is not None and kept:
        is_newest = last.attempt == view.status.attempt
        attempt = statuses.pods_attempt(view.status) if is_newest else last.attempt
        pod = names.pod(view.name, last.stage, attempt, last.rank)
        return "kubectl", "logs", "-n", view.namespace, pod
    return "kubectl", "describe", "rbj", "-n", view.namespace, view.name
