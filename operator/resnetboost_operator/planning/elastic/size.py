"""The number of devices: how many the next attempt gets, and for how many there is room.

Two facts in the status decide: `device_count`, that of the attempt that has begun, and `placeable_devices`, the most
for which there was room of late. Which samples make up a step never depends on it (`sizes`).
"""

import math

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import sizes
from resnetboost_operator.job import Job
from resnetboost_operator.observed import pods
from resnetboost_operator.observed.state import Observation, ObservedState
from resnetboost_operator.planning.actions import Plan, sooner
from resnetboost_operator.planning.elastic import probes


def begun(job: Job, status: Status) -> Status:
    """The status with the number of devices of an attempt that an operator without elastic gangs began."""
    if status.attempt_creation_time is None or status.device_count is not None:
        return status
    stage = next(stage for stage in job.spec.stages if stage.name == status.stage)
    return replace(status, virtual_ranks=job.defined_devices, device_count=stage.device_count)


def sized(job: Job, status: Status, observation: Observation) -> Job:
    """The job with the number of devices that each stage gets; of the current stage the one it has, once begun."""
    has_begun = status.attempt_creation_time is not None and status.device_count is not None
    fixed = {status.stage: status.device_count or 1} if has_begun else {}
    return sizes.resized(job, _most(job, status, observation), fixed)


def wanted(state: ObservedState) -> int:
    """The number of devices that the next attempt of the stage gets."""
    return sizes.largest(state.job, state.stage, _most(state.job, state.status, state.observation))


def with_room(state: ObservedState) -> ObservedState:
    """The state with what has been found out about room: too little for the gang, or enough for a larger one."""
    if state.job.spec.device.min_count is None or state.observation.is_queued(state.job):
        return replace(state, status=replace(state.status, placeable_devices=None))
    if wanted(state) != state.count:  # on its way to another size: what its pods say is about this one
        return state
    if (fewer := _fewer(state)) is not None and seconds_until_smaller(state) <= 0:
        return replace(state, status=replace(state.status, placeable_devices=fewer))
    if (more := _more(state)) is not None:
        limit = more if more < sizes.largest(state.job, state.stage, state.job.most_devices) else None
        return replace(state, status=replace(state.status, placeable_devices=limit))
    return state


def with_wake(state: ObservedState, decided: Plan) -> Plan:
    """The plan, which wakes up in time for another size: by what its status says, which `state` may not know yet."""
    after = replace(state, status=decided.status)
    ahead = [
        found for found in (seconds_until_smaller(after), probes.seconds_until_wanted(after)) if 0 < found < math.inf
    ]
    return replace(decided, wake_seconds=sooner(decided.wake_seconds, *ahead))


def seconds_until_smaller(state: ObservedState) -> float:
    """Seconds until a gang without room goes on with fewer devices; infinite if it has room or cannot."""
    device, since = state.job.spec.device, state.status.attempt_waiting_time
    if device.min_count is None or since is None or _fewer(state) is None:
        return float("inf")
    return pods.seconds(since) + device.elastic_after_seconds - state.now


def _most(job: Job, status: Status, observation: Observation) -> int:
    """The most devices that the job may have now: those asked for, that there was room for, and that are admitted."""
    limits = (job.most_devices, status.placeable_devices, observation.admitted_count(job))
    return min(limit for limit in limits if limit is not None)


def _fewer(state: ObservedState) -> int | None:
    """The next number of devices to try: the largest that found room, else the next smaller one. None if there is none
    that is not below minCount.
    """
    least = state.job.spec.device.min_count or 1
    smaller = [number for number in sizes.sizes(state.job, state.stage) if least <= number < state.count]
    bound = sum(bool(pod.node) for pod in state.gang)
    return max((number for number in smaller if number <= bound), default=max(smaller, default=None))


def _more(state: ObservedState) -> int | None:
    """The larger number of devices that probes have found room for, None without any."""
    if not probes.are_wanted(state, state.status):
        return None
    found = sizes.largest(state.job, state.stage, min(state.job.most_devices, state.count + probes.placed(state)))
    return found if found > state.count else None
