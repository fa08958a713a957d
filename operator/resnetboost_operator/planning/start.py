"""Start a gang: create its pods once the back-off is over."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests import gang
from resnetboost_operator.manifests.pods_to_create import PodsToCreate
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
    taken = {pod.index for pod in state.stale}
    indexes = tuple(index for index in state.missing if index not in taken)
    if not indexes:
        return Plan(status, delete=going, events=events, wake_seconds=wake)
    job, stage, attempt = state.job, state.stage, state.pods_attempt
    create = PodsToCreate(job, stage, attempt, indexes, placement.placement(state))
    obsolete = gang.obsolete_selector(job, attempt)
    return Plan(status, _shared_objects(state), going, events, create, obsolete=obsolete, wake_seconds=wake)


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
    message = f"attempt {status.attempt} of stage {status.stage}: a gang of {readable.plural(state.count, 'rank')}"
    return status, (Event("Normal", "GangStarting", message),)


def _shared_objects(state: ObservedState) -> tuple[Manifest, ...]:
    """The objects that missing pods refer to; they exist once one of the pods does."""
    shared = gang.shared(state.job, state.stage, state.pods_attempt, state.status.roll_backs)
    found = (*placement.missing_group(state), *shared)
    return _missing_from_older(found) if state.gang else found
