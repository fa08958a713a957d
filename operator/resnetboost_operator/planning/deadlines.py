"""activeDeadlineSeconds: fail a job that was active for too long."""

from resnetboost_api import failures
from resnetboost_operator.observed.failure import Failure
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import attempts, finish
from resnetboost_operator.planning.actions import Plan


def exceed_deadline(state: ObservedState) -> Plan:
    """Fail a job that exceeded activeDeadlineSeconds. Nothing is broken: its ranks may still save a checkpoint."""
    limit = state.job.spec.run_policy.active_deadline_seconds
    message = f"the job was active for more than activeDeadlineSeconds: {limit}"
    record = attempts.record(Failure(failures.DEADLINE, message=message), state.status, state.time)
    return finish.fail(state, failures.DEADLINE.name, message, record if state.gang else None)
