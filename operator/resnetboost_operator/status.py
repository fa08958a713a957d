"""The job's `.status`: its types, its Kubernetes form, and functions that read it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Complete", "Failed"]
StageState = Literal["Pending", "Running", "Complete", "Failed"]

# Bounds of what a rank may report: the CRD has the same, and the API server would refuse the whole status.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
State = Annotated[str, msgspec.Meta(max_length=63, pattern="^([A-Z][A-Za-z0-9]*)?$")]
Marks = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=16)], ...], msgspec.Meta(max_length=64)]
StageName = Annotated[str, msgspec.Meta(max_length=20)]

ATTEMPTS_KEPT = 20
MESSAGE_LIMIT = 1024
REASON_LIMIT = 128
RANK_TABLE_READY = "RankTableReady"


class Progress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Training progress as rank 0 last reported it on `/progress` (untrusted).

    `heartbeat` grows with every training step and evaluation batch, and `heartbeat_time` is when it last did; `epoch`
    is fractional; accuracies are 0..1.
    """

    state: State = ""
    stage: StageName = ""
    attempt: Count = 0
    step: Count = 0
    total_steps: Count = 0
    epoch: Amount = 0.0
    total_epochs: Count = 0
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    loss: Amount | None = None
    accuracy: Ratio | None = None
    learning_rate: Amount | None = None
    step_seconds: Amount | None = None
    images_per_second: Amount | None = None
    eta_seconds: Count | None = None
    checkpoint_step: Count | None = None
    resumed_step: Count | None = None
    top1: Ratio | None = None
    top5: Ratio | None = None
    test_loss: Amount | None = None
    slowest_rank: Count | None = None
    slowest_compute_seconds: Amount | None = None
    skipped_images: Count = 0
    heartbeat: Count = 0
    heartbeat_time: str | None = None


class Ranks(msgspec.Struct, frozen=True, rename="camel"):
    """Counts over the current gang; `succeeded` lists indexes ('0-6') and is sticky within an attempt."""

    desired: int = 0
    running: int = 0
    ready: int = 0
    failed: int = 0
    succeeded: str = ""


class StageStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One stage's state (Pending, Running, Complete, Failed), attempts so far and final evaluation.

    `checkpoint_step` is that of the newest checkpoint of its ended attempts, whose records are dropped after a while.
    `skipped_images` could not be read: counted over all ranks once they have ended, before that as rank 0 reports.
    """

    name: str
    state: StageState = "Pending"
    attempts: int = 0
    checkpoint_step: int | None = None
    top1: float | None = None
    top5: float | None = None
    test_loss: float | None = None
    skipped_images: int = 0


class Attempt(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The record of an ended attempt and of the failure that ended it, written before any of its pods is deleted."""

    attempt: int
    stage: str
    reason: str
    end_time: str
    start_time: str | None = None
    exit_code: int | None = None
    rank: int | None = None
    node: str | None = None
    last_step: int | None = None
    checkpoint_step: int | None = None
    resumed_step: int | None = None
    step_seconds: float | None = None
    message: str = ""


class Loss(msgspec.Struct, frozen=True, rename="camel"):
    """Device-seconds (pods times seconds) that were lost, and the failure class they were lost to."""

    reason: str
    device_seconds: int


class Goodput(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How the time of all ended attempts was spent.

    `productive_seconds` out of `attempt_seconds` went into steps that count; `repeated_steps` were lost and repeated.
    """

    attempt_seconds: int = 0
    productive_seconds: int = 0
    percent: int = 0
    repeated_steps: int = 0
    lost: tuple[Loss, ...] = ()


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """A Kubernetes condition (meta/v1)."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The whole status. `attempt` numbers grow over the job and never repeat.

    `attempt_creation_time` is when its first pod was planned: its startup deadline runs from there.
    `attempt_start_time` is set once every pod of the attempt was seen: from then on a missing pod is a lost one.
    `failure_time` is when a rank was first seen to have failed as the victim of a failure not seen yet.
    `rank_table` is the SHA-256 of the attempt's rank table, written before the table is published.
    `restart_time` is the time before which the next gang must not be created (the back-off).
    """

    phase: Phase = "Pending"
    conditions: tuple[Condition, ...] = ()
    stage: str = ""
    attempt: int = 0
    attempt_creation_time: str | None = None
    attempt_start_time: str | None = None
    failure_time: str | None = None
    rank_table: str | None = None
    restart_time: str | None = None
    restarts: int = 0
    restarts_count_towards_max: int = 0
    ranks: Ranks = Ranks()
    observed_generation: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    stages: tuple[StageStatus, ...] = ()
    progress: Progress | None = None
    goodput: Goodput | None = None
    attempts: tuple[Attempt, ...] = ()


def from_dict(status: Mapping[str, Any] | None) -> Status:
    """Decode a status in Kubernetes' form. None is an empty one."""
    return msgspec.convert(status or {}, Status)


def to_dict(status: Status) -> dict[str, Any]:
    """Encode a status in Kubernetes' form."""
    built: dict[str, Any] = msgspec.to_builtins(status)
    # The counters people look for are present from the start, also as zeros.
    return {"phase": status.phase, "attempt": 0, "restarts": 0, "restartsCountTowardsMax": 0} | built


def condition(status: Status, kind: str) -> Condition | None:
    """The condition of that type, None if the job has none."""
    return next((found for found in status.conditions if found.type == kind), None)


def is_true(status: Status, kind: str) -> bool:
    """Whether the condition of that type is True."""
    found = condition(status, kind)
    return found is not None and found.status == "True"


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
    return highest([*kept, *(record.checkpoint_step for record in status.attempts if record.stage == status.stage)])


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
