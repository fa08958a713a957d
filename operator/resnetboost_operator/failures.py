"""The failure class of a container that ended, by what Kubernetes and the trainer say of it."""

from resnetboost_api.failures import (
    ALL,
    BY_EXIT_CODE,
    BY_NAME,
    COMMUNICATION_ERROR,
    CONFIG_ERROR,
    DATA_ERROR,
    DEADLINE,
    DISRUPTED,
    FOR_GOOD,
    HANG,
    IMAGE_ERROR,
    INTERNAL_ERROR,
    INTERRUPTED,
    INVALID_POD,
    KILLED,
    NOT_SCHEDULED,
    NUMERICS_ERROR,
    OUT_OF_MEMORY,
    POD_LOST,
    RANK_TABLE_IMPOSSIBLE,
    RANK_TABLE_REFUSED,
    REJECTED,
    REPEATED,
    RESTARTING,
    STARTUP_DEADLINE,
    STORAGE_ERROR,
    SUCCEEDED,
    SUSPENDED,
    FailureClass,
    Policy,
)

__all__ = [
    "ALL",
    "BY_EXIT_CODE",
    "BY_NAME",
    "COMMUNICATION_ERROR",
    "CONFIG_ERROR",
    "DATA_ERROR",
    "DEADLINE",
    "DISRUPTED",
    "FOR_GOOD",
    "HANG",
    "IMAGE_ERROR",
    "INTERNAL_ERROR",
    "INTERRUPTED",
    "INVALID_POD",
    "KILLED",
    "NOT_SCHEDULED",
    "NUMERICS_ERROR",
    "OUT_OF_MEMORY",
    "POD_LOST",
    "RANK_TABLE_IMPOSSIBLE",
    "RANK_TABLE_REFUSED",
    "REJECTED",
    "REPEATED",
    "RESTARTING",
    "STARTUP_DEADLINE",
    "STORAGE_ERROR",
    "SUCCEEDED",
    "SUSPENDED",
    "FailureClass",
    "Policy",
    "classify",
]


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
