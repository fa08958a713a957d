"""Start a gang: create its pods once the back-off is over."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests import gang
from resnetboost_operator.manifests.pod import pod
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import deletions, pending, placement, wakeup
from resnetboost_operator.planning.actions import Event, Plan, sooner

Manifest = dict[str, Any]


def create_missing(state: ObservedState) -> Plan:
    """Create the missing pods of the gang, each as soon as the pod of its index in the gang before is gone.

    So a restart needs no more devices and no more quota than the gang it replaces, and one slow pod delays no other.
    """
    status = state.status
    going = deletions.delete(state, status, state.stale)
    back_off = pods.seconds(status.restart_time) - state.now
    if back_off > 0:
        return Plan(status, delete=going, wake_seconds=sooner(back_off, wakeup.wake_seconds(state)))
    events: tuple[Event, ...] = ()
    if status.attempt_creation_time is None:
        status, events = _begin_attempt(state)
    status = pending.with_reason(state, status)
    wake = wakeup.wake_seconds(replace(state, status=status))
    create, obsolete = _missing_objects(state), gang.obsolete_selector(state.job, state.pods_attempt)
    return Plan(status, create, going, events, obsolete=obsolete if create else "", wake_seconds=wake)


def _missing_from_older(shared: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Of the shared objects those that may be missing though some pods exist: an operator that knew no launchers may
    have begun this gang.
    """
    return tuple(found for found in shared if found["kind"] == "Secret")


def _begin_attempt(state: ObservedState) -> tuple[Status, tuple[Event, ...]]:
    status = replace(state.status, attempt_creation_time=state.time, device_count=state.count)
    status = replace(status, virtual_ranks=status.virtual_ranks or state.job.defined_devices)
    attempts = statuses.stage_status(status, status.stage).attempts + 1
    status = statuses.with_stage(status, status.stage, state="Running", attempts=attempts)
    message = f"attempt {status.attempt} of stage {status.stage}: a gang of {readable.plural(state.count, 'pod')}"
    return status, (Event("Normal", "GangStarting", message),)


def _missing_objects(state: ObservedState) -> tuple[Manifest, ...]:
    """Pods whose index is free. The objects they refer to come first, and exist once one of the pods does."""
    taken = {pod.index for pod in state.stale}
    indexes = [index for index in state.missing if index not in taken]
    job, stage, attempt = state.job, state.stage, state.pods_attempt
    shared = (
        (*placement.missing_group(state), *gang.shared(job, stage, attempt, state.status.roll_backs)) if indexes else ()
    )
    if state.gang:
        shared = _missing_from_older(shared)
    placed = placement.placement(state)
    return (*shared, *(pod(job, stage, attempt, index, placed) for index in indexes))
