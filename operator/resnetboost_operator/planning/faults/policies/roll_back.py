"""Policy `roll_back`: restart a diverged gang from a checkpoint before the trouble (failurePolicy.divergence)."""

from msgspec.structs import replace

from resnetboost_api.policies import Divergence
from resnetboost_api.status import Attempt, RollBack, Status
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning.faults.policies.policy import Refusal


class RollBackOrFail:
    """Go back up to maxRollBacks times. Fail the job where neither failurePolicy.divergence nor a rule asks for it."""

    uses_budget = True
    excludes_node = False

    def refusal(self, state: ObservedState, failure: Failure, record: Attempt) -> Refusal | None:
        """No wish to go back, or maxRollBacks used up."""
        rule = settings(state, record)
        if rule.action == "Fail":
            return Refusal(failure.failure_class.name, "a restart would end the same way")
        if len(state.status.roll_backs) < rule.max_roll_backs:
            return None
        return Refusal("MaxRollBacksExceeded", f"maxRollBacks: {rule.max_roll_backs} is used up")

    def roll_back(self, state: ObservedState, failure: Failure, record: Attempt) -> RollBack:
        """What the next attempt goes back for."""
        return _decided(settings(state, record), failure, record, _batches_ahead(state.status, record.stage))


def settings(state: ObservedState, record: Attempt) -> Divergence:
    """The job's settings. A rule's action RollBack needs none: the defaults do; without either the job fails."""
    found = state.job.spec.failure_policy.divergence
    if record.rule is not None:
        return replace(found or Divergence(), action="RollBack")
    return found or Divergence(action="Fail")


def described(found: RollBack, status: Status, rule: Divergence) -> str:
    """What is about to happen, for the event and the condition."""
    back = f"a checkpoint of step {found.at_most_step} or before" if found.at_most_step else "the stage's start"
    skipped = "" if found.skip_to_batch is None else ", skips the batches from there to the fault"
    slower = f", multiplies the learning rate by {found.learning_rate_factor:g}"
    which = f"roll-back {len(status.roll_backs)} of maxRollBacks: {rule.max_roll_backs}"
    return f"the gang goes back to {back}{skipped}{slower if found.learning_rate_factor != 1 else ''} ({which})"


def _batches_ahead(status: Status, stage: str) -> int:
    """How far the stage's data order is ahead of its steps, by its earlier roll-backs."""
    skipping = [(back, back.skip_to_batch) for back in status.roll_backs if back.stage == stage]
    ahead = (
        to_batch - (back.to_step if back.to_step is not None else back.at_most_step)
        for back, to_batch in skipping
        if to_batch is not None
    )
    return max(ahead, default=0)


def _decided(rule: Divergence, failure: Failure, record: Attempt, ahead: int) -> RollBack:
    """The record, from the fault that the rank reported or else from the last step it is known to have done.

    `ahead`: how many batches the data were ahead of the steps. The loss was above its limit for the last forSteps
    steps, so that a checkpoint of forSteps before was not yet.
    """
    fault = failure.fault
    step = fault.step if fault is not None else (record.last_step or 0) + 1
    batch = fault.batch if fault is not None else step + ahead
    return RollBack(
        attempt=record.attempt,
        stage=record.stage,
        from_step=step,
        at_most_step=max(0, step - rule.for_steps),
        learning_rate_factor=rule.learning_rate_factor,
        skip_to_batch=batch if rule.skip_batches else None,
    )
