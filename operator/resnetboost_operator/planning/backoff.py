"""How long a gang waits before it is tried again, from the recorded attempts alone; it keeps no counter of its own."""

from collections.abc import Sequence

from resnetboost_operator import api, failures
from resnetboost_operator.observed import pods
from resnetboost_operator.status import Attempt


def delay_seconds(policy: api.FailurePolicy, stage: str, attempts: Sequence[Attempt]) -> int:
    """Seconds before the next attempt: doubling from `backoffSeconds` for each attempt in a row that was not stable.

    One disruption by itself is nobody's fault and costs no wait; a second one in a row does, or something that keeps
    deleting pods would have the gang created without end (LeaderWorkerSet: 30 times in 90 s).
    An attempt that ended its stage well ends the row too: only the stage's own attempts count.
    An attempt that ran for `stableAfterSeconds` ends the row: it resets the back-off, never the budget. Suspended
    attempts are nobody's failure and count neither way.
    """
    unstable = 0
    attempts = [found for found in attempts if found.stage == stage and found.reason != "Suspended"]
    for attempt in reversed(attempts):
        if _ran_seconds(attempt) >= policy.stable_after_seconds:
            break
        unstable += 1
    if unstable <= 1 and attempts and _was_disrupted(attempts[-1]):
        return 0
    doubled = policy.backoff_seconds << min(max(unstable - 1, 0), 30)
    return min(doubled, policy.max_backoff_seconds)


def _was_disrupted(attempt: Attempt) -> bool:
    verdict = failures.BY_NAME.get(attempt.reason)
    return verdict is not None and verdict.policy == "disruption"


def _ran_seconds(attempt: Attempt) -> float:
    if attempt.start_time is None:
        return 0.0
    return pods.seconds(attempt.end_time) - pods.seconds(attempt.start_time)
