"""The table of failure policies, by the action that a rule or the default of a failure class asks for."""

from collections.abc import Mapping

from resnetboost_api import failures
from resnetboost_operator.planning.faults.policies.exclude_node import ExcludeNode
from resnetboost_operator.planning.faults.policies.fail import Fail
from resnetboost_operator.planning.faults.policies.policy import Policy
from resnetboost_operator.planning.faults.policies.restart import Restart
from resnetboost_operator.planning.faults.policies.restart_uncounted import RestartUncounted
from resnetboost_operator.planning.faults.policies.roll_back import RollBackOrFail

POLICIES: Mapping[failures.Action, Policy] = {
    "Restart": Restart(),
    "RestartUncounted": RestartUncounted(),
    "RollBack": RollBackOrFail(),
    "Fail": Fail(),
    "ExcludeNode": ExcludeNode(),
}
