"""Policy `Restart`: restart the gang up to maxRestarts times, unless the same failure repeats."""

from collections.abc import Sequence

from resnetboost_api import failures
from resnetboost_api.status import Attempt
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.faults.policies.policy import Refusal

# Classes that a bug or a bad sample may cause: at the same step each time.
REPEATABLE = (
    failures.INTERNAL_ERROR,
    failures.OUT_OF_MEMORY,
    failures.STORAGE_ERROR,
    # Where a rule restarts them: data and numbers are the same each time.
    failures.DATA_ERROR,
    failures.NUMERICS_ERROR,
)


class Restart:
    """Restart the gang while the budget lasts."""

    uses_budget = True
    excludes_node = False

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> Refusal | None:
        """A repeated failure, or maxRestarts used up."""
        if _is_repetition(failure, record, state.status.attempts):
            return Refusal(failures.REPEATED, "the attempt before ended the same way at the same step")
        limit = state.job.spec.failure_policy.max_restarts
        if state.status.restarts_count_towards_max < limit:
            return None
        return Refusal("MaxRestartsExceeded", f"maxRestarts: {limit} is used up")

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: the next attempt resumes from the newest checkpoint."""


def _is_repetition(failure: Failure, record: Attempt, attempts: Sequence[Attempt]) -> bool:
    """The same error at the same step twice: a bug or a bad sample, which no restart heals."""
    before = attempts[-1] if attempts else None
    if failure.failure_class not in REPEATABLE or before is None or record.last_step is None:
        return False
    return (before.reason, before.stage, before.last_step) == (record.reason, record.stage, record.last_step)
