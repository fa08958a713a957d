"""Functions that read the job's `.status`, and its Kubernetes form. Its types are the schema's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from resnetboost_api.status import (
    Attempt,
    Condition,
    Progress,
    Ranks,
    StageStatus,
    Status,
)

# Bounds of what a rank may report about skipped images.
Marks = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=16)], ...], msgspec.Meta(max_length=64)]

ATTEMPTS_KEPT = 20
MESSAGE_LIMIT = 1024
REASON_LIMIT = 128
RANK_TABLE_READY = "RankTableReady"
ADMITTED = "Admitted"
STRAGGLING = "Straggling"


def from_dict(status: Mapping[str, Any] | None) -> Status:
    """Decode a status in Kubernetes' form. None is an empty one."""
    return msgspec.convert(status or {}, Status)


def to_dict(status: Status) -> dict[str, Any]:
    """Encode a status in Kubernetes' form."""
    built: dict[str, Any] = msgspec.to_builtins(status)
    # The counters people look for are present from the start, also as zeros.
    return {"phase": status.phase, "attempt": 0, "restarts": 0, "restartsCountTowardsMax": 0} | built


def pods_attempt(status: Status) -> int:
    """The attempt whose pods the current attempt uses: an earlier one's if the ranks restarted in place."""
    return status.attempt if status.pods_attempt is None else status.pods_attempt


def is_in_place(status: Status) -> bool:
    """Whether the current attempt runs, or is to run, in the pods of an earlier one."""
    return pods_attempt(status) != status.attempt


def is_awaited_in_place(status: Status) -> bool:
    """Whether the ranks were told to start in place, and have not all been seen to run yet."""
    return is_in_place(status) and status.attempt_start_time is None


def condition(status: Status, kind: str) -> Condition | None:
    """The condition of that type, None if the job has none."""
    return next((found for found in status.conditions if found.type == kind), None)


def is_true(status: Status, kind: str) -> bool:
    """Whether the condition of that type is True."""
    found = condition(status, kind)
    return found is not None and found.status == "True"


def queued_since(status: Status) -> str | None:
    """When the job began to wait for its queue's admission; None if it does not wait. The time before it was resumed
    from a suspension does not count.
    """
    if status.phase != "Queued":
        return None
    found = (condition(status, kind) for kind in (ADMITTED, "Suspended"))
    # Of one form, so that the later one is the greater text.
    return max((one.last_transition_time for one in found if one is not None), default=None)


def is_terminal(status: Status) -> bool:
    """Whether the job is Complete or Failed: final, whatever happens to the pods later (Kubeflow trainer #3779)."""
    return is_true(status, "Complete") or is_true(status, "Failed")


def is_current(progress: Progress, status: Status) -> bool:
    """Whether the progress is that of the current attempt."""
    return (progress.stage, progress.attempt) == (status.stage, status.attempt)


def current_progress(status: Status) -> Progress | None:
    """The progress of the current attempt, None before its first report."""
    return status.progress if status.progress is not None and is_current(status.progress, status) else None


def stage_status(status: Status, name: str) -> StageStatus:
    """The named stage's status."""
    return next(found for found in status.stages if found.name == name)


def with_stage(status: Status, name: str, **changes: Any) -> Status:
    """The status with other values in the named stage's."""
    changed = msgspec.structs.replace(stage_status(status, name), **changes)
    stages = tuple(changed if found.name == name else found for found in status.stages)
    return msgspec.structs.replace(status, stages=stages)


def earlier_checkpoint_step(status: Status) -> int | None:
    """Step of the newest checkpoint known from the current stage's ended attempts."""
    kept = [stage.checkpoint_step for stage in status.stages if stage.name == status.stage]
    # An older operator wrote it to the records alone.
    return highest([*kept, *(_usable(status, record) for record in status.attempts if record.stage == status.stage)])


def _usable(status: Status, record: Attempt) -> int | None:
    """The newest checkpoint of an ended attempt that no roll-back has abandoned since."""
    since = [back for back in status.roll_backs if back.stage == record.stage and back.attempt >= record.attempt]
    if record.checkpoint_step is None:
        return None
    return min(record.checkpoint_step, *(back.at_most_step for back in since), record.checkpoint_step)


def highest(steps: Sequence[int | None]) -> int | None:
    """The highest of the steps that are known."""
    return max((step for step in steps if step is not None), default=None)


def is_urgent(before: Status, after: Status) -> bool:
    """Whether a change must be written at once: more than counts, progress or the message of a condition."""
    return _essence(before) != _essence(after)


def _essence(status: Status) -> Status:
    """The status without what changes all the time. Ranks that are done stay: they must not run again."""
    conditions = tuple(msgspec.structs.replace(found, message="") for found in status.conditions)
    ranks = Ranks(desired=status.ranks.desired, succeeded=status.ranks.succeeded)
    return msgspec.structs.replace(status, conditions=conditions, ranks=ranks, progress=None)


def format_indexes(indexes: Iterable[int]) -> str:
    """Indexes as Kubernetes' Indexed Job writes them: '0-2,5'."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_indexes(text: str) -> frozenset[int]:
    """The inverse of `format_indexes`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
