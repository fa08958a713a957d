"""Policy `RestartUncounted`: restart the gang without using the budget, for evictions, deleted pods and lost nodes."""

from resnetboost_api.status import Attempt
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState


class RestartUncounted:
    """Restart the gang however often it fails, also at the same step: its user says that the job is not to blame."""

    uses_budget = False
    excludes_node = False

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: the gang is always restarted. The back-off keeps it from doing so in a loop."""

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: the next attempt resumes from the newest checkpoint."""
