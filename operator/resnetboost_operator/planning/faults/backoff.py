"""The back-off: seconds to wait before a gang is restarted, computed from the recorded attempts.

Not the back-off of API requests (kubeclient/retry) or of failed passes (controller/workqueue).
"""

from collections.abc import Sequence

from resnetboost_api import failures
from resnetboost_api.policies import FailurePolicy
from resnetboost_api.status import Attempt
from resnetboost_operator.observed import pods


def delay_seconds(policy: FailurePolicy, stage: str, attempts: Sequence[Attempt]) -> int:
    """Seconds before the next attempt: doubling from `backoffSeconds` for each attempt in a row that was not stable.

    A single disruption costs no wait, whatever the rules say of it; a second one in a row does, or something that keeps
    deleting pods would have the gang created without end (LeaderWorkerSet: 30 times in 90 s).
    An attempt that ran for `stableAfterSeconds` ends the row: it resets the back-off, never the budget. So does a
    complete stage: only attempts of the current stage count. Suspended and evicted attempts are skipped.
    """
    unstable, stopped = 0, {found.name for found in failures.STOPPED}
    attempts = [found for found in attempts if found.stage == stage and found.reason not in stopped]
    for attempt in reversed(attempts):
        if _ran_seconds(attempt) >= policy.stable_after_seconds:
            break
        unstable += 1
    if unstable <= 1 and attempts and _was_disrupted(attempts[-1]):
        return 0
    doubled = policy.backoff_seconds << min(max(unstable - 1, 0), 30)
    return min(doubled, policy.max_backoff_seconds)


def _was_disrupted(attempt: Attempt) -> bool:
    failure_class = failures.BY_NAME.get(attempt.reason)
    return failure_class is not None and failure_class.policy == "disruption"


def _ran_seconds(attempt: Attempt) -> float:
    if attempt.start_time is None:
        return 0.0
    return pods.seconds(attempt.end_time) - pods.seconds(attempt.start_time)
