"""Clean up after a finished job: its pods by cleanPodPolicy, the job itself after ttlSecondsAfterFinished."""

from resnetboost_api.status import Status
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import deletions, wakeup
from resnetboost_operator.planning.actions import Deletion, Plan, sooner


def clean_up(state: ObservedState) -> Plan:
    """The plan for a job that is complete or has failed."""
    left = seconds_to_live(state, state.now - pods.seconds(state.status.completion_time))
    expire, wake = left is not None and left <= 0, sooner(left, wakeup.node_wake_seconds(state))
    return Plan(state.status, delete=obsolete_pods(state, state.status), expire=expire, wake_seconds=wake)


def obsolete_pods(state: ObservedState, status: Status) -> tuple[Deletion, ...]:
    """Deletions by cleanPodPolicy. By default pods that have ended stay, for their logs."""
    present = (*state.gang, *state.stale, *state.kept)
    match state.job.spec.run_policy.clean_pod_policy:
        case "All":
            return deletions.delete(state, status, present)
        case "Running":
            return deletions.delete(state, status, [pod for pod in present if pod.termination is None])
    return ()


def seconds_to_live(state: ObservedState, since_completion: float) -> float | None:
    """Seconds left of ttlSecondsAfterFinished, None without one."""
    limit = state.job.spec.run_policy.ttl_seconds_after_finished
    return None if limit is None else limit - since_completion
