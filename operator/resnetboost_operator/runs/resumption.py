"""Decides what a second run of the same folder may change and where it starts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_api.status import Ranks, StageStatus, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.planning.conditions import phase
from resnetboost_operator.validation import schema

Manifest = Mapping[str, Any]

_MISSING = "nothing"


def refusal(kept: Manifest, job: Manifest) -> str:
    """Why `job` is a different training than the `kept` one, or ''.

    The CRD's transition rules decide, as they would for `kubectl apply` over an existing job.
    """
    before, after = kept["metadata"]["name"], job["metadata"]["name"]
    if before != after:
        return _sentence("metadata.name", before, after)
    refused = [problem.field for problem in schema.check(job, kept)]
    for path, before, after in _differences("spec", kept["spec"], job["spec"]):
        if any(path.startswith(field) for field in refused):
            return _sentence(path, before, after)
    return refused[0] if refused else ""


def _sentence(path: str, before: Any, after: Any) -> str:
    return f"{path} is {_shown(before)} there and {_shown(after)} here"


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every leaf that differs."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _differences(f"{path}.{key}", before.get(key, _MISSING), after.get(key, _MISSING))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _differences(f"{path}[{index}]", *pair)
    elif before != after:
        yield path, before, after


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "set" if isinstance(value, Mapping) else str(value)


def is_over(status: Status, stages: Sequence[str]) -> bool:
    """True if every stage of the job is complete; more epochs or another stage make it incomplete."""
    return statuses.is_true(status, "Complete") and _outstanding(status, stages) is None


def with_stages_that_go_on(status: Status, stages: Collection[str]) -> Status:
    """The status with those stages incomplete and without results, because they get more epochs."""
    found = (StageStatus(old.name, attempts=old.attempts) if old.name in stages else old for old in status.stages)
    return replace(status, stages=tuple(found))


def reopened(status: Status, stages: Sequence[str], attempts_on_disk: int = 0) -> Status:
    """The status from which a run of a job with those stages starts.

    A failed job is retried, since its user may have fixed the cause. A complete one continues with added stages or
    epochs. If the status is lost but checkpoints exist, their attempts count: the next one resumes from them instead of
    overwriting them.

    On a cluster Failed and Complete are final; here the user names the same folder again. The next attempt resumes from
    the newest checkpoint, with the full number of restarts.
    """
    if not status.stage:
        return replace(status, attempt=max(status.attempt, attempts_on_disk))
    known = {stage.name: stage for stage in status.stages}
    status = replace(status, stages=tuple(known.get(name, StageStatus(name)) for name in stages))
    outstanding = _outstanding(status, stages)
    over = statuses.is_terminal(status)
    if outstanding is None or (outstanding == status.stage and not over):
        return status
    kept = tuple(found for found in status.conditions if found.type not in ("Complete", "Failed", "Running"))
    pending = tuple(replace(stage, state="Pending") if stage.state == "Failed" else stage for stage in status.stages)
    again = replace(
        status,
        conditions=kept,
        stage=outstanding,
        attempt=status.attempt + 1,
        pods_attempt=None,
        attempt_creation_time=None,
        attempt_start_time=None,
        failure_time=None,
        waiting_time=None,
        restart_time=None,
        restarts_count_towards_max=0,
        ranks=Ranks(desired=status.ranks.desired),
        start_time=None,
        completion_time=None,
        stages=pending,
    )
    return replace(again, phase=phase(again))


def _outstanding(status: Status, stages: Sequence[str]) -> str | None:
    """The first stage that is not complete."""
    complete = {stage.name for stage in status.stages if stage.state == "Complete"}
    return next((name for name in stages if name not in complete), None)
