"""Policy `fail`: end the job at once, because a restart would end the same way."""

from resnetboost_api.status import Attempt
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.policies.policy import Refusal


class Fail:
    """Never restart the gang."""

    uses_budget = True

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> Refusal:
        """The failure class itself is the reason."""
        return Refusal(failure.failure_class.name, "a restart would end the same way")

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: the next attempt resumes from the newest checkpoint."""
