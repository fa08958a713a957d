"""Placement of a gang: which scheduler and which queue are in charge, and what they put on its pods."""

from typing import Any

from msgspec.structs import replace

from resnetboost_operator.manifests.placement import Placement
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.planning import admission, deletions, exclusion, wakeup
from resnetboost_operator.planning.actions import Plan
from resnetboost_operator.planning.conditions import not_running
from resnetboost_operator.scheduling import gang_scheduler, registry
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler
from resnetboost_operator.scheduling.kueue.admission import placed

Manifest = dict[str, Any]

NO_GANG_SCHEDULER = "NoGangScheduler"


def scheduler(state: ObservedState) -> GangScheduler | None:
    """The gang scheduler in charge of the job, None if its pods are scheduled one by one."""
    return registry.gang_scheduler(state.job.spec.scheduling, state.observation.capabilities)


def placement(state: ObservedState) -> Placement:
    """What the pods of the current attempt get. Those of a gang that began without a group, before the cluster served
    its API, get none either: the others would wait for it for ever.
    """
    base, found = gang_scheduler.base_placement(state.job), scheduler(state)
    base = replace(base, excluded_nodes=exclusion.nodes(state.status))
    if found is not None and not (state.gang and missing_group(state)):
        base = found.placed(base, state.job, state.stage, state.pods_attempt)
    workload = state.observation.workload
    if workload is None or not admission.is_queued(state):
        return base
    return placed(base, state.job, workload, state.observation.flavors)


def missing_group(state: ObservedState) -> tuple[Manifest, ...]:
    """The PodGroup of the current attempt, if its scheduler wants one and it is not there."""
    found = scheduler(state)
    if found is None or found.pod_group is None:
        return ()
    if any(group.api == found.api and not group.deleting for group in state.pod_groups):
        return ()
    return (found.pod_group(state.job, state.stage, state.pods_attempt),)


def hold(state: ObservedState) -> Plan | None:
    """The plan for a gang that must not start, because `gang: {}` is written out and no scheduler can do it."""
    policy = state.job.spec.scheduling.scheduling_policy
    if policy is None or policy.gang is None or state.gang or scheduler(state) is not None:
        return None
    message = registry.why_none(state.job.spec.scheduling, state.observation.capabilities)
    status = not_running(state.status, NO_GANG_SCHEDULER, message, state.time)
    going = deletions.delete(state, status, state.stale)
    return Plan(status, delete=going, wake_seconds=wakeup.wake_seconds(state))
