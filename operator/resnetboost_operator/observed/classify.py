"""Maps the end of a container to a failure class, by exit code, signal and termination message."""

from resnetboost_api import failures
from resnetboost_api.failures import FailureClass


def classify(exit_code: int | None, reason: str, reported_class: str) -> FailureClass:
    """Class of a container that ended with `exit_code`; None if kubelet never let it begin.

    `reason` is kubelet's (`OOMKilled`, `Evicted` ...), `reported_class` the class the trainer wrote into its
    termination message, which is untrusted: it counts only when the exit code agrees with it.
    """
    if reason == "OOMKilled":
        return failures.OUT_OF_MEMORY
    if reason in ("Evicted", "Preempting", "Terminated", "NodeLost", "NodeShutdown"):
        return failures.POD_LOST
    if exit_code is None:
        return failures.REJECTED
    reported = failures.BY_NAME.get(reported_class)
    if reported is not None and reported.exit_code == exit_code:
        return reported
    return failures.of_exit_code(exit_code)
