"""Summary of a run: its exit code and closing lines, read from the run folder."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from resnetboost_api import failures
from resnetboost_api.status import Status
from resnetboost_operator import lost_time, readable
from resnetboost_operator import status as statuses
from resnetboost_operator.cli.view import text
from resnetboost_operator.observed import pods
from resnetboost_operator.runs import adasum, metricsfile, pca, thor
from resnetboost_operator.runs.runfolder import RunFolder

_FAILED_OTHERWISE = failures.INTERNAL_ERROR
# Failures that the job's own fields cause: the same job would fail the same way.
_OF_FIELDS = tuple(found.name for found in (failures.CONFIG_ERROR, failures.NUMERICS_ERROR, failures.DIVERGED))


class Commands(msgspec.Struct, frozen=True):
    """Commands that run a job again: `again` as it is, `corrected` after a change of its fields."""

    again: str
    corrected: str


def exit_code(status: Status) -> int:
    """The exit code of a run: 0 if complete, the failure class's if failed, `interrupted` if stopped."""
    if statuses.is_true(status, "Complete"):
        return 0
    last = failures.BY_NAME.get(status.attempts[-1].reason) if status.attempts else None
    if not statuses.is_true(status, "Failed"):
        stopped = last is None or last.policy == "disruption" or last.exit_code is None
        return _code(failures.INTERRUPTED if stopped else last)
    return _code(last)


def _code(verdict: failures.FailureClass | None) -> int:
    """The exit code of a failure class; classes without one of their own have the general one."""
    return (verdict.exit_code if verdict is not None else None) or _FAILED_OTHERWISE.exit_code or 1


def closing_lines(folder: RunFolder, status: Status, commands: Commands, elapsed_seconds: float) -> Iterator[str]:
    """The closing lines: the result, where its files are, and how to continue."""
    job, measured = folder.read_job(), metricsfile.current(folder)
    yield f"{job['metadata']['name']} {outcome(status)}"
    yield _line("time", f"{readable.duration(elapsed_seconds)}, {readable.plural(status.restarts, 'restart')}")
    if spent := goodput(status):
        yield _line("goodput", spent)
    for stage in status.stages:
        for skipped in text.skipped(stage):
            yield _line("data", f"{stage.name}: {skipped}; {folder.logs} names each")
    for updates in thor.by_stage(measured):
        yield _line("curvature", text.SEPARATOR.join(text.curvature(updates)))
    for sums in adasum.by_stage(measured, job):
        yield _line("Adasum", text.SEPARATOR.join(text.sums(sums)))
    for found in pca.by_stage(measured):
        yield _line("PCA", text.SEPARATOR.join(text.subspace(found)))
    if folder.report_html.exists():
        yield _line("report", folder.report_html)
    checkpoint = newest_checkpoint(folder)
    if checkpoint is not None:
        yield _line("checkpoint", checkpoint)
        if url := job["spec"].get("checkpoint", {}).get("url"):
            yield _line("copies", f"{url.rstrip('/')}/{job['metadata']['uid']}")
    if (best := best_checkpoint(folder, status)) is not None:
        yield _line("best", best)
    yield _line("logs", folder.logs)
    if exit_code(status) != 0:
        yield _invitation(folder, status, checkpoint, commands)


def _invitation(folder: RunFolder, status: Status, checkpoint: Path | None, commands: Commands) -> str:
    """The command that runs the job again, and what to do before it."""
    failed = statuses.condition(status, "Failed")
    reason = failed.reason if failed is not None and failed.status == "True" else ""
    if reason in _OF_FIELDS:
        fresh = "" if folder.is_barren() else " --fresh  (deletes this run)"
        return _line("correct the job file or its --set, then ", commands.corrected + fresh)
    if reason in failures.FOR_GOOD:
        return _line("fix, then", commands.again)
    return _line("resume" if checkpoint is not None else "try again", commands.again)


def _line(what: str, value: object) -> str:
    return f"  {what:<10} {value}"


def outcome(status: Status) -> str:
    """How the run ended or was interrupted, as the rest of a sentence about it."""
    if statuses.is_true(status, "Complete"):
        return "is complete: " + text.SEPARATOR.join(text.result(status.stages[-1]) or ["no result"])
    failed = statuses.condition(status, "Failed")
    if failed is not None and failed.status == "True":
        return f"failed: {failed.message}"
    return f"was interrupted in stage {status.stage}{_stopped_at(status)}"


def _stopped_at(status: Status) -> str:
    """The last step of a run: ranks report their last checkpoint when they end, progress may be older."""
    if status.progress is None:
        return " before its first step"
    return f" at step {max(status.progress.step, status.progress.checkpoint_step or 0)}"


def newest_checkpoint(folder: RunFolder) -> Path | None:
    """The newest checkpoint of the last attempt that has one, from which the next attempt resumes."""
    job = folder.read_job()
    for stage in reversed(job["spec"]["stages"]):
        place: Path = folder.checkpoints / job["metadata"]["uid"] / stage["name"]
        found = [path.parent for path in place.glob("attempt-[0-9]*/step-[0-9]*/manifest.json")]
        if found:
            return max(found, key=_age)
    return None


def best_checkpoint(folder: RunFolder, status: Status) -> Path | None:
    """The best checkpoint of the last stage that has one."""
    stage = next((stage for stage in reversed(status.stages) if stage.best is not None), None)
    if stage is None or stage.best is None:
        return None
    place = folder.checkpoints / folder.read_job()["metadata"]["uid"] / stage.name
    found = [path.parent for path in place.glob(f"attempt-[0-9]*/best-{stage.best.step:08d}/manifest.json")]
    return max(found, key=_age, default=None)


def _age(checkpoint: Path) -> tuple[int, int, str]:
    """Sort key by attempt and step, which has eight digits or more."""
    return int(checkpoint.parent.name.removeprefix("attempt-")), len(checkpoint.name), checkpoint.name


def description(folder: RunFolder, now: float) -> Iterator[str]:
    """Lines that describe the state of a run."""
    status = folder.read_status()
    job = folder.read_job()
    phase = status.phase if status.stage else "not begun"
    in_use = not is_at_rest(status) and folder.in_use()
    runs = in_use is not False
    dead = "" if runs or is_at_rest(status) else ", but nothing runs it"
    if in_use is None:
        dead = ", or nothing runs it: its lock cannot be read"
    yield f"{job['metadata']['name']} in {folder.path}: {phase}{dead}"
    failed = statuses.condition(status, "Failed")
    if failed is not None and failed.status == "True":
        yield _line("why", failed.message)
    for stage in status.stages:
        progress = text.progress_of(stage, status)
        phrases = text.result(stage)
        if stage.state != "Complete" and progress is not None:
            running = runs and status.phase == "Running"
            phrases = [*text.position(progress), *text.figures(progress, running=running)]
        phrases = [stage.state, *phrases, *text.skipped(stage)]
        yield _line(f"stage {stage.name}", text.SEPARATOR.join(phrases))
    if runs and status.phase == "Running" and status.progress is not None:
        yield from (_line("slow", text.slow(found, now)) for found in status.progress.stragglers)
    yield _line("restarts", status.restarts)
    if spent := goodput(status):
        yield _line("goodput", spent)
    for back in status.roll_backs:
        yield _line("went back", text.roll_back(back))
    for attempt in status.attempts:
        yield _line(f"attempt {attempt.attempt}", text.attempt(attempt))
    if status.start_time is not None:
        yield _line("active", readable.duration(active_seconds(status, now)))
    if dead or statuses.is_true(status, "Suspended"):
        words = ("resnetboost", "run", str(folder.job_file), "--out", str(folder.path))
        yield _line("resume", readable.printable(shlex.join(words)))


def goodput(status: Status) -> str:
    """The share of time that went into steps that count, and what the rest was lost to; '' if nothing restarted."""
    found = status.goodput
    if not status.restarts or found is None or not found.attempt_seconds:
        return ""
    return text.SEPARATOR.join(filter(None, [f"{found.percent} %", lost_time.summary(found)]))


def is_at_rest(status: Status) -> bool:
    """True if the run is not active and stays as it is until somebody runs it again."""
    return statuses.is_terminal(status) or statuses.is_true(status, "Suspended")


def active_seconds(status: Status, now: float) -> float:
    """Seconds since the run was started or last resumed."""
    begun = pods.seconds(status.start_time)
    return (pods.seconds(status.completion_time) or now) - begun if begun else 0.0
