"""The failure classes: how a rank or an attempt can end, the exit code of each, and what follows from it.

A trainer ends with the exit codes and writes the names into its termination message; the operator reads both.
"""

from typing import Literal

import msgspec

Policy = Literal["fail", "restart", "disruption", "roll_back"]
# What failurePolicy.rules may ask for.
Action = Literal["Restart", "RestartUncounted", "RollBack", "Fail", "ExcludeNode"]
# What follows from a failure that no rule matches.
DEFAULT_ACTIONS: dict[Policy, Action] = {
    "fail": "Fail",
    "restart": "Restart",
    "disruption": "RestartUncounted",
    "roll_back": "RollBack",
}


class FailureClass(msgspec.Struct, frozen=True):
    """One failure class.

    `policy`: `fail` ends the job at once (a retry would fail the same way), `restart` restarts the gang and uses the
    budget, `disruption` restarts it without using the budget (nobody's fault: an eviction, a deleted pod), `roll_back`
    restarts it from a checkpoint before the failure if failurePolicy.divergence says so, and else ends the job.
    `culprit_order` ranks the failures of one gang: the lowest explains the others (a communication error is a victim).
    """

    name: str
    exit_code: int | None
    policy: Policy
    culprit_order: int


SUCCEEDED = FailureClass("Succeeded", 0, "restart", 99)
INTERNAL_ERROR = FailureClass("InternalError", 1, "restart", 5)
CONFIG_ERROR = FailureClass("ConfigError", 10, "fail", 0)
DATA_ERROR = FailureClass("DataError", 11, "fail", 0)
NUMERICS_ERROR = FailureClass("NumericsError", 12, "roll_back", 1)
OUT_OF_MEMORY = FailureClass("OutOfMemory", 13, "restart", 2)
COMMUNICATION_ERROR = FailureClass("CommunicationError", 14, "restart", 8)
STORAGE_ERROR = FailureClass("StorageError", 15, "restart", 3)
INTERRUPTED = FailureClass("Interrupted", 16, "restart", 9)
DIVERGED = FailureClass("Diverged", 17, "roll_back", 1)
PREFLIGHT_FAILED = FailureClass("PreflightFailed", 18, "restart", 3)
# Classes a trainer cannot report about itself.
KILLED = FailureClass("Killed", None, "restart", 4)
DISRUPTED = FailureClass("Disrupted", None, "disruption", 4)
POD_LOST = FailureClass("PodLost", None, "disruption", 6)
REJECTED = FailureClass("Rejected", None, "disruption", 6)
INVALID_POD = FailureClass("InvalidPod", None, "fail", 7)
IMAGE_ERROR = FailureClass("ImageError", None, "fail", 7)
HANG = FailureClass("Hang", None, "restart", 7)
NOT_SCHEDULED = FailureClass("NotScheduled", None, "disruption", 7)
STARTUP_DEADLINE = FailureClass("StartupDeadlineExceeded", None, "restart", 7)
# Another placement may give devices that can work together; pods of several devices never will.
RANK_TABLE_REFUSED = FailureClass("RankTableRefused", None, "restart", 7)
RANK_TABLE_IMPOSSIBLE = FailureClass("RankTableImpossible", None, "fail", 7)
DEADLINE = FailureClass("DeadlineExceeded", None, "fail", 10)
SUSPENDED = FailureClass("Suspended", None, "disruption", 10)
# A gang that straggler.action: Replace starts again without the node of a slow rank.
STRAGGLER = FailureClass("Straggler", None, "disruption", 10)
# By the job's queue: another job gets its devices.
EVICTED = FailureClass("Evicted", None, "disruption", 10)

ALL = (
    SUCCEEDED,
    INTERNAL_ERROR,
    CONFIG_ERROR,
    DATA_ERROR,
    NUMERICS_ERROR,
    OUT_OF_MEMORY,
    COMMUNICATION_ERROR,
    STORAGE_ERROR,
    INTERRUPTED,
    DIVERGED,
    PREFLIGHT_FAILED,
    KILLED,
    DISRUPTED,
    POD_LOST,
    REJECTED,
    NOT_SCHEDULED,
    INVALID_POD,
    IMAGE_ERROR,
    HANG,
    STARTUP_DEADLINE,
    RANK_TABLE_REFUSED,
    RANK_TABLE_IMPOSSIBLE,
    DEADLINE,
    SUSPENDED,
    STRAGGLER,
    EVICTED,
)
# Ranks that probably ended because of another one.
VICTIMS = (COMMUNICATION_ERROR, INTERRUPTED)
# Whole gangs that were stopped on purpose: neither a failure nor a restart.
STOPPED = (SUSPENDED, EVICTED)
# Why a job fails where the same error comes at the same step twice.
REPEATED = "RepeatedFailure"
# What makes a job fail that would end the same way again, unless somebody mends something first.
_ENDING = ("fail", "roll_back")
FOR_GOOD = (REPEATED, *(verdict.name for verdict in ALL if verdict.policy in _ENDING and verdict is not DEADLINE))
# Those that a gang may be started again for.
RESTARTING = tuple(verdict for verdict in ALL if verdict.policy != "fail" and verdict not in (SUCCEEDED, *STOPPED))
# Failures that rules may name: of these alone it is open what follows. What Kubernetes disrupts is no failure of the
# job, whatever the exit code; a deadline, a replacement and a stop have been asked for.
RULED = tuple(verdict for verdict in ALL if verdict not in (SUCCEEDED, DISRUPTED, DEADLINE, STRAGGLER, *STOPPED))
RuledClass = Literal[
    "InternalError",
    "ConfigError",
    "DataError",
    "NumericsError",
    "OutOfMemory",
    "CommunicationError",
    "StorageError",
    "Interrupted",
    "Diverged",
    "PreflightFailed",
    "Killed",
    "PodLost",
    "Rejected",
    "NotScheduled",
    "InvalidPod",
    "ImageError",
    "Hang",
    "StartupDeadlineExceeded",
    "RankTableRefused",
    "RankTableImpossible",
]
# Of any exit code: kubelet says that the memory was used up, or that the node went away.
_OF_ANY_CODE = (OUT_OF_MEMORY, POD_LOST)
BY_NAME = {verdict.name: verdict for verdict in ALL}
BY_EXIT_CODE = {verdict.exit_code: verdict for verdict in ALL if verdict.exit_code is not None}


def of_exit_code(exit_code: int) -> FailureClass:
    """The class of a process that ended with the exit code, where nothing but the code is known."""
    return KILLED if exit_code > 128 else BY_EXIT_CODE.get(exit_code, INTERNAL_ERROR)


def exit_codes(verdict: FailureClass) -> frozenset[int]:
    """The exit codes other than 0 that a rank of this class can end with; none for classes without a process' end."""
    if verdict in _OF_ANY_CODE:
        return frozenset(range(1, 256))
    if verdict is KILLED:
        return frozenset(range(129, 256))
    if verdict is INTERNAL_ERROR:  # what no other class has
        return frozenset(code for code in range(1, 129) if BY_EXIT_CODE.get(code, INTERNAL_ERROR) is INTERNAL_ERROR)
    return frozenset() if verdict.exit_code is None else frozenset({verdict.exit_code})


def default_rules() -> dict[Action, tuple[str, ...]]:
    """What follows from each class where no rule of the job matches: names of classes by action."""
    return {
        action: tuple(verdict.name for verdict in ALL if verdict in (*RULED, DISRUPTED) and verdict.policy == policy)
        for policy, action in DEFAULT_ACTIONS.items()
    }
