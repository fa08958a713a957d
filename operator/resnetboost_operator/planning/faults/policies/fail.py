"""Policy `Fail`: end the job at once, because a restart would end the same way or its user does not want one."""

from resnetboost_api.status import Attempt
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.faults.policies.policy import Refusal


class Fail:
    """Never restart the gang."""

    uses_budget = True
    excludes_node = False

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> Refusal:
        """The failure class itself is the reason."""
        by_rule = f"rule {record.rule} of failurePolicy.rules says Fail"
        return Refusal(failure.failure_class.name, by_rule if record.rule else "a restart would end the same way")

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> None:
        """Return None: the next attempt resumes from the newest checkpoint."""
