"""The job's `.status`: its types, its conditions and its Kubernetes form; what it should say is the plan's business."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspending", "Suspended", "Complete", "Failed"]
StageState = Literal["Pending", "Running", "Complete", "Failed"]

# Bounds of what a rank may claim about itself: the CRD has the same, and would refuse the whole status.
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
GANG_INCOMPLETE = ("GangIncomplete", "a rank table needs every pod of the gang bound to a node")


class Progress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What rank 0 last told about itself on `/progress` (untrusted), plus `heartbeat_time`, when it last moved.

    `heartbeat` grows with every training step and evaluation batch; `epoch` is fractional; accuracies are 0..1.
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

    `checkpoint_step` is that of the newest checkpoint its ended attempts left: their records are kept only so long.
    `skipped_images` could not be used: by all ranks once they have ended, before that by what rank 0 tells.
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
    """How a gang ended and who is to blame: the evidence kept before any of its pods is deleted."""

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
    """Device-seconds (pods times seconds) that ended in nothing, by what they were lost to."""

    reason: str
    device_seconds: int


class Goodput(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of the time of all ended attempts.

    `productive_seconds` went into steps that count, out of `attempt_seconds`; `repeated_steps` were done but lost.
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

    `attempt_creation_time` is when its first pod was decided on, so that its deadline runs from there.
    `attempt_start_time` is set once every pod of the attempt was seen: from then on a missing pod is a lost one.
    `failure_time` is when a rank was first seen to have failed as a victim of something not seen yet.
    `rank_table` is the SHA-256 of the attempt's rank table, decided before the table is published.
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
    """Status as read from a cluster; an absent one is empty."""
    return msgspec.convert(status or {}, Status)


def to_dict(status: Status) -> dict[str, Any]:
    """Status in Kubernetes' form, ready to be written."""
    built: dict[str, Any] = msgspec.to_builtins(status)
    # The counters people look for are there from the start, also when they are zero.
    return {"phase": status.phase, "attempt": 0, "restarts": 0, "restartsCountTowardsMax": 0} | built


def condition(status: Status, kind: str) -> Condition | None:
    """The condition of that type, if the job has it."""
    return next((found for found in status.conditions if found.type == kind), None)


def is_true(status: Status, kind: str) -> bool:
    """Whether that condition is there and True."""
    found = condition(status, kind)
    return found is not None and found.status == "True"


def is_terminal(status: Status) -> bool:
    """Complete and Failed are for ever, whatever happens to the pods afterwards (Kubeflow trainer #3779)."""
    return is_true(status, "Complete") or is_true(status, "Failed")


def with_condition(status: Status, kind: str, value: bool, reason: str, message: str, now: str) -> Status:
    """Set a condition; its transition time moves only when its status does. Reason and message may be anybody's."""
    before = condition(status, kind)
    text = "True" if value else "False"
    since = before.last_transition_time if before is not None and before.status == text else now
    new = Condition(kind, text, word(reason), plain(message)[:MESSAGE_LIMIT], since, status.observed_generation)
    others = tuple(kept for kept in status.conditions if kept.type != kind)
    conditions = tuple(sorted((*others, new), key=lambda found: found.type))
    return msgspec.structs.replace(status, conditions=conditions)


def word(text: str) -> str:
    """Anybody's text as the reason of a condition, which Kubernetes wants to be one word: CreatingSandbox."""
    parts = re.findall(r"[A-Za-z0-9_,:]+", text)
    joined = "".join(part if number == 0 else part[0].upper() + part[1:] for number, part in enumerate(parts))
    return re.sub(r"^[^A-Za-z]+", "", joined)[:REASON_LIMIT].rstrip(",:") or "Unknown"


def plain(text: str) -> str:
    """Anybody's text without what would move a cursor or change colours; lines stay."""
    return "".join(found if found.isprintable() or found in "\n\t" else " " for found in text)


def is_urgent(before: Status, after: Status) -> bool:
    """Whether a change must be written at once: more than counts, progress or the words of a condition."""
    return _essence(before) != _essence(after)


def _essence(status: Status) -> Status:
    """The status without what changes all the time. The ranks that are done stay: they must not run again."""
    conditions = tuple(msgspec.structs.replace(found, message="") for found in status.conditions)
    ranks = Ranks(desired=status.ranks.desired, succeeded=status.ranks.succeeded)
    return msgspec.structs.replace(status, conditions=conditions, ranks=ranks, progress=None)


def with_attempt(status: Status, attempt: Attempt) -> Status:
    """Append evidence, keeping the newest ATTEMPTS_KEPT so that the status stays small."""
    kept = (*status.attempts, attempt)[-ATTEMPTS_KEPT:]
    return msgspec.structs.replace(status, attempts=kept)


def with_next_attempt(status: Status, now: str) -> Status:
    """The next number, with nothing known about it."""
    if condition(status, RANK_TABLE_READY) is not None:
        status = with_condition(status, RANK_TABLE_READY, False, *GANG_INCOMPLETE, now)
    unknown = {"attempt_creation_time": None, "attempt_start_time": None, "failure_time": None, "rank_table": None}
    return msgspec.structs.replace(status, attempt=status.attempt + 1, **unknown)


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
