"""All gang schedulers, and which of them schedules a job. A new one is one file and one line here."""

from resnetboost_api.scheduling import Scheduling
from resnetboost_operator.observed.capabilities import Capabilities
from resnetboost_operator.scheduling.coscheduling import COSCHEDULING
from resnetboost_operator.scheduling.gang_scheduler import GangScheduler
from resnetboost_operator.scheduling.kubernetes import KUBERNETES_136, KUBERNETES_137
from resnetboost_operator.scheduling.volcano import VOLCANO
from resnetboost_operator.scheduling.yunikorn import YUNIKORN

# The first that fits a job and the cluster is taken.
GANG_SCHEDULERS: tuple[GangScheduler, ...] = (KUBERNETES_137, KUBERNETES_136, VOLCANO, YUNIKORN, COSCHEDULING)
# Whose scheduler may have any name, because administrators build it themselves.
OF_ANY_NAME = COSCHEDULING


def gang_scheduler(scheduling: Scheduling, capabilities: Capabilities) -> GangScheduler | None:
    """The scheduler that schedules the job's gangs as one; None if none can, or the job wants `basic`."""
    policy = scheduling.scheduling_policy
    if policy is not None and policy.basic is not None:
        return None
    return next((found for found in named(scheduling) if _is_there(found, capabilities)), None)


def named(scheduling: Scheduling) -> tuple[GangScheduler, ...]:
    """The schedulers that the job's `schedulerName` may mean."""
    name = scheduling.scheduler_name or ""
    return tuple(found for found in GANG_SCHEDULERS if name in found.scheduler_names) or (OF_ANY_NAME,)


def why_none(scheduling: Scheduling, capabilities: Capabilities) -> str:
    """Why no scheduler can schedule the job as a gang, and what to do; for `schedulingPolicy: {gang: {}}`."""
    name, wanted = scheduling.scheduler_name or "", named(scheduling)
    apis = " or ".join(found.api for found in wanted)
    if not capabilities.gangs_enabled:
        problem, remedy = "the operator runs without --gang-scheduling", "set gangScheduling.enabled of its chart"
    elif wanted == (OF_ANY_NAME,) and name not in OF_ANY_NAME.scheduler_names:
        problem = f"no gang scheduler is known by the schedulerName {name}, and the cluster does not serve {apis}"
        remedy = f"correct it, or {OF_ANY_NAME.install}"
    else:
        problem, remedy = f"the cluster does not serve {apis}", wanted[0].install
        if not name:
            remedy += ", or name another gang scheduler in scheduling.schedulerName"
    return f"schedulingPolicy is gang, but {problem}; {remedy}, or use basic: {{}}"


def _is_there(found: GangScheduler, capabilities: Capabilities) -> bool:
    """Whether its groups can be created. One that has none needs no right and cannot be discovered."""
    return not found.api or (capabilities.gangs_enabled and found.api in capabilities.pod_groups)
