"""Policy `disruption`: restart the gang without using the budget, for evictions, deleted pods and lost nodes."""

from resnetboost_api.status import Attempt
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState


class Disruption:
    """Restart the gang however often it is disrupted."""

    uses_budget = False

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: a disruption is always retried."""

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: the next attempt resumes from the newest checkpoint."""
