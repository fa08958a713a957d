"""Which rule of failurePolicy.rules decides what follows from a failure."""

import msgspec

from resnetboost_api import failures
from resnetboost_api.failures import Action
from resnetboost_api.policies import FailurePolicy, FailureRule
from resnetboost_operator.observed.failure import Failure


class Decision(msgspec.Struct, frozen=True):
    """What follows from a failure. `rule` is the name of the rule that says so, None if it is the class' default."""

    action: Action
    rule: str | None = None


def decide(policy: FailurePolicy, failure: Failure) -> Decision:
    """The decision of the first rule that matches, or the default."""
    for number, rule in enumerate(policy.rules, start=1):
        if _matches(rule, failure):
            return Decision(rule.action, rule.name or f"rule-{number}")
    return Decision(failures.DEFAULT_ACTIONS[failure.failure_class.policy])


def _matches(rule: FailureRule, failure: Failure) -> bool:
    """Whether class and exit code are among the rule's. A disruption is no rule's matter."""
    return (
        failure.failure_class in failures.RULED
        and (not rule.on_classes or failure.failure_class.name in rule.on_classes)
        and (not rule.on_exit_codes or failure.exit_code in rule.on_exit_codes)
    )
