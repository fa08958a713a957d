"""All gang schedulers, and which of them schedules a job. A new one is one file and one line here."""

from resnetboost_api.scheduling import Scheduling
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler
from resnetboost_operator.scheduling.kubernetes import KUBERNETES_136, KUBERNETES_137

# The first that fits a job and the cluster is taken.
GANG_SCHEDULERS: tuple[GangScheduler, ...] = (KUBERNETES_137, KUBERNETES_136)


def why_none(scheduling: Scheduling, capabilities: Capabilities) -> str:
    """Why no scheduler can schedule the job as a gang, and what to do; for `schedulingPolicy: {gang: {}}`."""
    name = scheduling.scheduler_name or ""
    wanted = [found for found in GANG_SCHEDULERS if name in found.scheduler_names]
    problem = "schedulingPolicy is gang, but no gang scheduler is known to this cluster"
    if not capabilities.gangs_enabled:
        return f"{problem}: the operator runs without --gang-scheduling; set gangScheduling.enabled of its chart"
    if name and not wanted:
        return f"{problem} by the schedulerName {name}; correct it, or use basic: {{}}"
    remedy = wanted[0].install if wanted else "install one"
    return f"{problem}: {remedy}, or use basic: {{}}"


def gang_scheduler(scheduling: Scheduling, capabilities: Capabilities) -> GangScheduler | None:
    """The scheduler that schedules the job's gangs as one; None if none can, or the job wants `basic`."""
    policy = scheduling.scheduling_policy
    if (policy is not None and policy.basic is not None) or not capabilities.gangs_enabled:
        return None
    name = scheduling.scheduler_name or ""
    fitting = (found for found in GANG_SCHEDULERS if name in found.scheduler_names)
    return next((found for found in fitting if not found.api or found.api in capabilities.pod_groups), None)
