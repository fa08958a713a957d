"""Conditions of the status, and the phase derived from them."""

import re

from msgspec.structs import replace

from resnetboost_api.status import Condition, ConditionStatus, Phase, Status
from resnetboost_operator import status as statuses
from resnetboost_operator.status import MESSAGE_LIMIT, REASON_LIMIT

GANG_INCOMPLETE = ("GangIncomplete", "a rank table needs every pod of the gang bound to a node")
BRIEF_LIMIT = 600
# Conditions that are a phase while they are True, the first of them first.
_ENDS: tuple[Phase, ...] = ("Complete", "Failed", "Suspended")
QUEUED, EVICTED, RESIZING = "Queued", "Evicted", "Resizing"
# Reasons of the condition Running that are a phase while it is False. The last two are of local runs without a process.
_REASONS: dict[str, Phase] = {
    "NoGangScheduler": "Pending",
    "Restarting": "Restarting",
    "Suspending": "Suspending",
    EVICTED: "Suspending",
    RESIZING: "Restarting",
    QUEUED: "Queued",
    "Stopped": "Suspended",
    "NotBegun": "Pending",
}


def phase(status: Status) -> Phase:
    """The job's phase, from its conditions alone."""
    running = statuses.condition(status, "Running")
    for end in _ENDS:
        if statuses.is_true(status, end):
            return end
    if running is None:
        return "Pending"
    if running.status == "True":
        return "Running"
    if running.reason == "StageComplete":
        return status.phase  # as the finished stage left it, until the gang of the next one is created
    return _REASONS.get(running.reason, "Starting")


def with_condition(status: Status, kind: str, value: bool, reason: str, message: str, now: str) -> Status:
    """Set a condition. Its transition time moves only when its status does. Reason and message may be untrusted."""
    before = statuses.condition(status, kind)
    text: ConditionStatus = "True" if value else "False"
    since = before.last_transition_time if before is not None and before.status == text else now
    new = Condition(kind, text, word(reason), plain(message)[:MESSAGE_LIMIT], since, status.observed_generation)
    others = tuple(kept for kept in status.conditions if kept.type != kind)
    conditions = tuple(sorted((*others, new), key=lambda found: found.type))
    return replace(status, conditions=conditions)


def without_condition(status: Status, kind: str) -> Status:
    """The status without the condition of that type."""
    return replace(status, conditions=tuple(kept for kept in status.conditions if kept.type != kind))


def not_running(status: Status, reason: str, message: str, now: str) -> Status:
    """Set the condition Running to False."""
    return with_condition(status, "Running", False, reason, message, now)


def word(text: str) -> str:
    """Untrusted text as the reason of a condition, which Kubernetes wants to be one word: CreatingSandbox."""
    parts = re.findall(r"[A-Za-z0-9_,:]+", text)
    joined = "".join(part if number == 0 else part[0].upper() + part[1:] for number, part in enumerate(parts))
    return re.sub(r"^[^A-Za-z]+", "", joined)[:REASON_LIMIT].rstrip(",:") or "Unknown"


def brief(message: str) -> str:
    """One line of bounded length: kubelet's and schedulers' messages are long, and names in them of any form."""
    return " ".join(message.split())[:BRIEF_LIMIT]


def plain(text: str) -> str:
    """Untrusted text without control characters, which would move a cursor or change colours. Newlines stay."""
    return "".join(found if found.isprintable() or found in "\n\t" else " " for found in text)
