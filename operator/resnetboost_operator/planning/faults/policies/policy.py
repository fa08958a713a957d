"""The interface of a failure policy."""

from typing import Protocol

import msgspec

from resnetboost_api.status import Attempt, RollBack
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState


class Refusal(msgspec.Struct, frozen=True):
    """Why a gang is not restarted: the reason of the condition Failed, and the end of its message."""

    reason: str
    message: str


class Policy(Protocol):
    """How the plan answers the failure of a gang.

    `uses_budget`: a restart counts towards maxRestarts. `excludes_node`: the next attempts avoid the node of the rank
    that failed, for this one failure.
    """

    uses_budget: bool
    excludes_node: bool

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> Refusal | None:
        """Why the gang is not restarted; None if it is. `record` is that of the ended attempt."""
        ...

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> RollBack | None:
        """How the next attempt goes back to before the failure; None if it resumes as usual."""
        ...
