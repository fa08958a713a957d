"""Maps the end of a container to a failure class, by exit code, signal and termination message."""

from resnetboost_api import failures
from resnetboost_api.failures import FailureClass

_KILLED = 137


def classify(exit_code: int | None, reason: str, reported_class: str) -> FailureClass:
    """Class of a container that ended with `exit_code`; None if kubelet never let it begin.

    `reason` is kubelet's (`OOMKilled`, `Evicted` ...), `reported_class` the class the trainer wrote into its
    termination message, which is untrusted: it counts only when the exit code agrees with it. A launcher tells in the
    same way that its rank was killed for memory, which kubelet notices of process 1 alone.
    """
    if reason == "OOMKilled":
        return failures.OUT_OF_MEMORY
    if reason in ("Evicted", "Preempting", "Terminated", "NodeLost", "NodeShutdown"):
        return failures.POD_LOST
    if exit_code is None:
        return failures.REJECTED
    reported = failures.BY_NAME.get(reported_class)
    for_memory = reported is failures.OUT_OF_MEMORY and exit_code == _KILLED
    if reported is not None and (for_memory or reported.exit_code == exit_code):
        return reported
    return failures.of_exit_code(exit_code)
