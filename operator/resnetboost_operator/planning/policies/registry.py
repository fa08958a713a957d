"""The table of failure policies. `failures.ALL` names the policy of each failure class."""

from collections.abc import Mapping

from resnetboost_api import failures
from resnetboost_operator.planning.policies.disruption import Disruption
from resnetboost_operator.planning.policies.fail import Fail
from resnetboost_operator.planning.policies.policy import Policy
from resnetboost_operator.planning.policies.restart import Restart
from resnetboost_operator.planning.policies.roll_back import RollBackOrFail

POLICIES: Mapping[failures.Policy, Policy] = {
    "fail": Fail(),
    "restart": Restart(),
    "disruption": Disruption(),
    "roll_back": RollBackOrFail(),
}


def policy_of(failure_class: failures.FailureClass) -> Policy:
    """The policy of a failure class."""
    return POLICIES[failure_class.policy]
