"""Clean up after a finished job: its pods by cleanPodPolicy, the job itself after ttlSecondsAfterFinished."""

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import deletions, wakeup
from resnetboost_operator.planning.actions import Deletion, Plan, sooner

# A launcher whose rank has failed ends its container after 10 s without a command.
END_SECONDS = 15.0


def clean_up(state: ObservedState) -> Plan:
    """The plan for a job that is complete or has failed."""
    left = seconds_to_live(state, state.now - pods.seconds(state.status.completion_time))
    wake = sooner(left, seconds_to_end(state, state.status), wakeup.node_wake_seconds(state))
    expire = left is not None and left <= 0
    return Plan(state.status, delete=obsolete_pods(state, state.status), expire=expire, wake_seconds=wake)


def obsolete_pods(state: ObservedState, status: Status) -> tuple[Deletion, ...]:
    """Deletions by cleanPodPolicy. By default pods that have ended stay, for their logs; also those whose rank has
    failed, and whose launcher is about to end the container.
    """
    present = (*state.gang, *state.stale, *state.kept)
    match state.job.spec.run_policy.clean_pod_policy:
        case "All":
            return deletions.delete(state, status, present)
        case "Running":
            waits = seconds_to_end(state, status) is not None
            going = [pod for pod in present if not pod.container_ended and not (waits and _failed(pod, status))]
            return deletions.delete(state, status, going)
    return ()


def seconds_to_end(state: ObservedState, status: Status) -> float | None:
    """Seconds that launchers of failed ranks have left to end their containers, None if no such container runs."""
    left = END_SECONDS + pods.seconds(status.completion_time) - state.now
    ending = any(_failed(pod, status) and not pod.container_ended for pod in state.gang)
    return left if ending and left > 0 else None


def _failed(pod: PodView, status: Status) -> bool:
    """Whether the pod's rank has failed: by its launcher, or by the record of the attempt, whose pod it is."""
    if pod.termination is not None:
        return True
    record = status.attempts[-1] if status.attempts else None
    is_last = record is not None and record.attempt == status.attempt and pod.attempt == statuses.pods_attempt(status)
    return is_last and record is not None and record.exit_code is not None and record.rank == pod.index


def seconds_to_live(state: ObservedState, since_completion: float) -> float | None:
    """Seconds left of ttlSecondsAfterFinished, None without one."""
    limit = state.job.spec.run_policy.ttl_seconds_after_finished
    return None if limit is None else limit - since_completion
