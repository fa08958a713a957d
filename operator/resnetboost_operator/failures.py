"""Failure classes: their exit codes, and the failure policy of each."""

from typing import Literal

import msgspec

Policy = Literal["fail", "restart", "disruption"]


class FailureClass(msgspec.Struct, frozen=True):
    """One failure class.

    `policy`: `fail` ends the job at once (a retry would fail the same way), `restart` restarts the gang and uses the
    budget, `disruption` restarts it without using the budget (nobody's fault: an eviction, a deleted pod).
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
NUMERICS_ERROR = FailureClass("NumericsError", 12, "fail", 1)
OUT_OF_MEMORY = FailureClass("OutOfMemory", 13, "restart", 2)
COMMUNICATION_ERROR = FailureClass("CommunicationError", 14, "restart", 8)
STORAGE_ERROR = FailureClass("StorageError", 15, "restart", 3)
INTERRUPTED = FailureClass("Interrupted", 16, "restart", 9)
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
)
# Reason of a job that failed because the same error occurred at the same step twice.
REPEATED = "RepeatedFailure"
# Why a job fails that would fail the same way again until its cause is removed.
FOR_GOOD = (REPEATED, *(found.name for found in ALL if found.policy == "fail" and found is not DEADLINE))
# Classes after which a gang may be restarted.
RESTARTING = tuple(found for found in ALL if found.policy != "fail" and found not in (SUCCEEDED, SUSPENDED))
BY_NAME = {found.name: found for found in ALL}
BY_EXIT_CODE = {found.exit_code: found for found in ALL if found.exit_code is not None}


def classify(exit_code: int | None, reason: str, reported_class: str) -> FailureClass:
    """Class of a container that ended with `exit_code`; None if kubelet never let it begin.

    `reason` is kubelet's (`OOMKilled`, `Evicted` ...), `reported_class` the class the trainer wrote into its
    termination message, which is untrusted: it counts only when the exit code agrees with it.
    """
    if reason == "OOMKilled":
        return OUT_OF_MEMORY
    if reason in ("Evicted", "Preempting", "Terminated", "NodeLost", "NodeShutdown"):
        return POD_LOST
    if exit_code is None:
        return REJECTED
    reported = BY_NAME.get(reported_class)
    if reported is not None and reported.exit_code == exit_code:
        return reported
    if exit_code > 128:
        return KILLED
    return BY_EXIT_CODE.get(exit_code, INTERNAL_ERROR)
