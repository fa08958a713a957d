"""Probes: pods that find out whether there is room for a larger gang, without disturbing the one that trains.

They are what the larger gang would have more: pods of the current attempt with the indexes after its ranks. A scheduler
places them when devices are free. Each holds its device for a minute, or one free device would be counted for several.
The first that ends also ends the round: it stays to say so until it is time for the next, in which all ask together.
The next attempt takes them for stale.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import sizes
from resnetboost_operator import status as statuses
from resnetboost_operator.manifests.probe import PROBE_SECONDS, probe
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import exclusion
from resnetboost_operator.planning.actions import Deletion, Plan, sooner
from resnetboost_operator.scheduling import gang_scheduler


def are_wanted(state: ObservedState, status: Status) -> bool:
    """Whether to look for room: the gang runs on fewer devices than it should, and resizeBackoffSeconds are over."""
    return _may_grow(state, status) and seconds_until_wanted(state) <= 0


def seconds_until_wanted(state: ObservedState) -> float:
    """Seconds until room for a larger gang is looked for; infinite if it has all devices or does not run."""
    if not _may_grow(state, state.status):
        return float("inf")
    return pods.seconds(state.status.resize_time) + state.job.spec.device.resize_backoff_seconds - state.now


def placed(state: ObservedState) -> int:
    """How many probes hold a device."""
    return sum(bool(pod.node) and not pod.container_ended and not pod.deleting for pod in state.probes)


def with_probes(state: ObservedState, decided: Plan) -> Plan:
    """The plan with probes created where they are wanted, and deleted where they are old or not wanted any more."""
    if not are_wanted(state, decided.status):
        return replace(decided, delete=(*decided.delete, *_deletions(state.probes)))
    if ended := [pod for pod in state.probes if pod.container_ended]:
        return _pause(state, decided, ended)
    there = {pod.index for pod in (*state.probes, *state.stale)}
    indexes = [index for index in range(state.count, _full(state)) if index not in there]
    base = replace(gang_scheduler.base_placement(state.job), excluded_nodes=exclusion.nodes(state.status))
    created = tuple(probe(state.job, state.stage, state.pods_attempt, index, base) for index in indexes)
    return replace(decided, objects=(*decided.objects, *created))


def _pause(state: ObservedState, decided: Plan, ended: Sequence[PodView]) -> Plan:
    """The plan between two rounds. Probes that wait would ask at another time than those of the next round."""
    left = max(_seconds_left(state, pod) for pod in ended)
    going = ended if left <= 0 else [pod for pod in state.probes if pod not in ended]
    wake = sooner(decided.wake_seconds, left if left > 0 else None)
    return replace(decided, delete=(*decided.delete, *_deletions(going)), wake_seconds=wake)


def _may_grow(state: ObservedState, status: Status) -> bool:
    same = (status.stage, status.attempt) == (state.status.stage, state.status.attempt)
    if not same or status.placeable_devices is None or statuses.is_terminal(status):
        return False
    if state.job.spec.run_policy.suspend or state.job.spec.device.min_count is None:
        return False
    return status.attempt_start_time is not None and state.count < _full(state)


def _full(state: ObservedState) -> int:
    """The number of devices that the gang should have."""
    return sizes.largest(state.job, state.stage, state.job.most_devices)


def _seconds_left(state: ObservedState, pod: PodView) -> float:
    """Seconds until the next round may follow that of a probe that has ended."""
    pause = max(state.job.spec.device.resize_backoff_seconds, PROBE_SECONDS)
    return max(pod.bound, pod.created) + pause - state.now


def _deletions(found: Iterable[PodView]) -> tuple[Deletion, ...]:
    return tuple(Deletion(pod.name, pod.uid, 1) for pod in found if not pod.deleting)
