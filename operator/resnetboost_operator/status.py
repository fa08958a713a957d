"""The job's `.status`: its conditions and its Kubernetes form; what it should say is the plan's business."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from resnetboost_api.status import (
    Amount,
    Attempt,
    Condition,
    ConditionStatus,
    Count,
    Goodput,
    Loss,
    Phase,
    Progress,
    Ranks,
    Ratio,
    StageState,
    StageStatus,
    Status,
)

__all__ = [
    "ATTEMPTS_KEPT",
    "GANG_INCOMPLETE",
    "MESSAGE_LIMIT",
    "RANK_TABLE_READY",
    "REASON_LIMIT",
    "Amount",
    "Attempt",
    "Condition",
    "ConditionStatus",
    "Count",
    "Goodput",
    "Loss",
    "Marks",
    "Phase",
    "Progress",
    "Ranks",
    "Ratio",
    "StageState",
    "StageStatus",
    "Status",
    "condition",
    "format_indexes",
    "from_dict",
    "is_terminal",
    "is_true",
    "is_urgent",
    "parse_indexes",
    "plain",
    "to_dict",
    "with_attempt",
    "with_condition",
    "with_next_attempt",
    "word",
]

# What a rank may claim about the images that it skipped.
Marks = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=16)], ...], msgspec.Meta(max_length=64)]

ATTEMPTS_KEPT = 20
MESSAGE_LIMIT = 1024
REASON_LIMIT = 128
RANK_TABLE_READY = "RankTableReady"
GANG_INCOMPLETE = ("GangIncomplete", "a rank table needs every pod of the gang bound to a node")


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
    text: ConditionStatus = "True" if value else "False"
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
