"""What a rank's end means: failure classes, their exit codes, what the plan does about each; it observes nothing."""

from typing import Literal

import msgspec

Policy = Literal["fail", "restart", "disruption"]


class Verdict(msgspec.Struct, frozen=True):
    """One failure class.

    `policy`: `fail` ends the job at once (a retry would fail the same way), `restart` restarts the gang and uses the
    budget, `disruption` restarts it without using the budget (nobody's fault: an eviction, a deleted pod).
    `culprit_order` ranks the failures of one gang: the lowest explains the others (a communication error is a victim).
    """

    name: str
    exit_code: int | None
    policy: Policy
    culprit_order: int


SUCCEEDED = Verdict("Succeeded", 0, "restart", 99)
INTERNAL_ERROR = Verdict("InternalError", 1, "restart", 5)
CONFIG_ERROR = Verdict("ConfigError", 10, "fail", 0)
DATA_ERROR = Verdict("DataError", 11, "fail", 0)
NUMERICS_ERROR = Verdict("NumericsError", 12, "fail", 1)
OUT_OF_MEMORY = Verdict("OutOfMemory", 13, "restart", 2)
COMMUNICATION_ERROR = Verdict("CommunicationError", 14, "restart", 8)
STORAGE_ERROR = Verdict("StorageError", 15, "restart", 3)
INTERRUPTED = Verdict("Interrupted", 16, "restart", 9)
# Classes a trainer cannot report about itself.
KILLED = Verdict("Killed", None, "restart", 4)
DISRUPTED = Verdict("Disrupted", None, "disruption", 4)
POD_LOST = Verdict("PodLost", None, "disruption", 6)
REJECTED = Verdict("Rejected", None, "disruption", 6)
INVALID_POD = Verdict("InvalidPod", None, "fail", 7)
IMAGE_ERROR = Verdict("ImageError", None, "fail", 7)
HANG = Verdict("Hang", None, "restart", 7)
NOT_SCHEDULED = Verdict("NotScheduled", None, "disruption", 7)
STARTUP_DEADLINE = Verdict("StartupDeadlineExceeded", None, "restart", 7)
# Another placement may give devices that can work together; pods of several devices never will.
RANK_TABLE_REFUSED = Verdict("RankTableRefused", None, "restart", 7)
RANK_TABLE_IMPOSSIBLE = Verdict("RankTableImpossible", None, "fail", 7)
DEADLINE = Verdict("DeadlineExceeded", None, "fail", 10)
SUSPENDED = Verdict("Suspended", None, "disruption", 10)

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
# Why a job fails where the same error comes at the same step twice.
REPEATED = "RepeatedFailure"
# What makes a job fail that would end the same way again, unless somebody mends something first.
FOR_GOOD = (REPEATED, *(verdict.name for verdict in ALL if verdict.policy == "fail" and verdict is not DEADLINE))
# Those that a gang may be started again for.
RESTARTING = tuple(verdict for verdict in ALL if verdict.policy != "fail" and verdict not in (SUCCEEDED, SUSPENDED))
BY_NAME = {verdict.name: verdict for verdict in ALL}
BY_EXIT_CODE = {verdict.exit_code: verdict for verdict in ALL if verdict.exit_code is not None}


def classify(exit_code: int | None, reason: str, reported_class: str) -> Verdict:
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
