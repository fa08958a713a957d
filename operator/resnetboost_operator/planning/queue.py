"""Queues: a job runs only while Kueue admits it. One Workload per job, written level by level.

Until the job is admitted nothing is created, and no deadline runs. Evicted, its gang stops as for a suspension; its
quota is given back when the last pod is gone, and the Workload keeps its place in the queue. A restarted gang keeps
Workload and quota.
"""

from msgspec.structs import replace

from resnetboost_api import failures
from resnetboost_api.status import Ranks, Status
from resnetboost_operator import readable
from resnetboost_operator import status as statuses
from resnetboost_operator.observed.state import ObservedState
from resnetboost_operator.observed.workload import WorkloadView
from resnetboost_operator.planning import admission, deletions, placement, stop, wakeup
from resnetboost_operator.planning.actions import Event, Plan, WorkloadWrite, sooner
from resnetboost_operator.planning.admission import QUEUE_CHANGED, WITHOUT_QUEUE
from resnetboost_operator.planning.conditions import EVICTED, QUEUED, not_running
from resnetboost_operator.scheduling.kueue import admission as admissions
from resnetboost_operator.scheduling.kueue import patches
from resnetboost_operator.scheduling.kueue import workload as workloads
from resnetboost_operator.status import ADMITTED

# How soon to look again for a ResourceFlavor that is not known.
FLAVOR_SECONDS = 5.0


def hold(state: ObservedState) -> Plan | None:
    """The plan for a job whose pods must not exist, because its queue does not admit it (any more)."""
    if not admission.is_queued(state) or admission.is_admitted(state) or admission.runs_without(state):
        return None
    began = state.status.attempt_start_time is not None or statuses.is_in_place(state.status)
    if state.gang or state.tombstones or began:
        stopped = stop.stop(state, failures.EVICTED, EVICTED, _why(state))
        if isinstance(stopped, Plan):
            return stopped
        state = replace(state, status=stopped)
    return _wait(state)


def await_flavors(state: ObservedState) -> Plan | None:
    """The plan for an admitted job while a ResourceFlavor of its pods is not known yet."""
    workload = state.observation.workload
    if not admission.is_queued(state) or workload is None or not admission.is_admitted(state):
        return None
    unknown = [name for name in admissions.flavor_names(workload) if name not in state.observation.flavors]
    if not unknown:
        return None
    message = f"admitted; waiting for what ResourceFlavor {readable.listed(unknown)} says about its nodes"
    status = not_running(state.status, "FlavorUnknown", message, state.time)
    delete = deletions.delete(state, status, state.stale)
    return Plan(status, delete=delete, wake_seconds=sooner(FLAVOR_SECONDS, wakeup.wake_seconds(state)))


def with_workload(before: Status, state: ObservedState, decided: Plan) -> Plan:
    """The plan with the next write of the job's Workload, and with events about its queue."""
    events = (*decided.events, *_events(before, decided.status))
    return replace(decided, workload=_writes(state, decided), events=events)


def _why(state: ObservedState) -> str:
    condition = statuses.condition(state.status, ADMITTED)
    return "" if condition is None else f"evicted from its queue: {condition.message}"


def _wait(state: ObservedState) -> Plan:
    """Nothing runs: the job waits in its queue, and its active time has not begun."""
    status = replace(
        state.status,
        start_time=None,
        restart_time=None,
        attempt_creation_time=None,
        ranks=Ranks(desired=state.count),
    )
    state = replace(state, status=status)
    if not state.stale and (impossible := placement.hold(state)) is not None:
        return impossible  # admitted, it would only keep the quota from others
    condition = statuses.condition(status, ADMITTED)
    message = condition.message if condition is not None else ""
    if state.stale:
        message = f"{message}; waiting for {readable.listed([pod.name for pod in state.stale])} to end"
    status = not_running(status, QUEUED, message, state.time)
    delete = deletions.delete(state, status, state.stale)
    return Plan(status, delete=delete, wake_seconds=wakeup.node_wake_seconds(state))


def _writes(state: ObservedState, decided: Plan) -> tuple[WorkloadWrite, ...]:
    """At most one write: the next plan sees its result."""
    found = state.observation.workload
    if not admission.is_queued(state):
        return ()
    if found is None:
        return _create(state, decided.status)
    if found.deleting:
        return ()
    present = bool(state.gang or state.stale or decided.creates)
    if statuses.is_terminal(decided.status):
        return _finish(state, found, decided.status)
    if _is_obsolete(state, found, decided.status):
        return () if present else (WorkloadWrite("delete", found.name, {"metadata": {"uid": found.uid}}),)
    if admission.has_quota(found) and found.is_true("Evicted"):
        release = WorkloadWrite("patch-status", found.name, patches.release(found, state.time))
        return () if present else (release,)
    return _move(state, found) or _report(state, found)


def _create(state: ObservedState, status: Status) -> tuple[WorkloadWrite, ...]:
    """The Workload of a job that waits and has no pods: Kueue counts none twice."""
    running = statuses.condition(status, "Running")
    if running is None or running.reason != QUEUED or state.gang or state.stale:
        return ()
    if not _knows_priority(state):
        return ()
    manifest = workloads.manifest(state.job, state.stage, state.observation.priority)
    return (WorkloadWrite("create", manifest["metadata"]["name"], manifest),)


def _knows_priority(state: ObservedState) -> bool:
    return workloads.priority_class(state.job) is None or state.observation.priority is not None


def _finish(state: ObservedState, found: WorkloadView, status: Status) -> tuple[WorkloadWrite, ...]:
    """Report the end once every pod has ended; until then they use what was reserved for them."""
    alive = any(not pod.container_ended for pod in (*state.gang, *state.stale, *state.kept))
    end = next((one for one in status.conditions if one.type in ("Complete", "Failed") and one.status == "True"), None)
    if alive or end is None or found.is_true("Finished"):
        return ()
    return (WorkloadWrite("patch-status", found.name, patches.finished(found, end, state.time)),)


def _is_obsolete(state: ObservedState, found: WorkloadView, status: Status) -> bool:
    """Whether the Workload must go: of a suspended job; finished by others (OwnerNotFound); for too few pods; of a gang
    that no scheduler can start; or of a job without a queue, unless quota is reserved for it.
    """
    if statuses.is_true(status, "Suspended") or found.is_true("Finished") or not admission.fits(state):
        return True
    running = statuses.condition(status, "Running")
    if running is not None and running.reason == placement.NO_GANG_SCHEDULER:
        return True
    return not state.job.queue and not admission.has_quota(found)


def _move(state: ObservedState, found: WorkloadView) -> tuple[WorkloadWrite, ...]:
    """Correct queue and priority of a Workload that waits: it keeps its age. With quota only the value of its kind of
    priority may change.
    """
    wanted, reserved = workloads.priority_class(state.job), admission.has_quota(found)
    kind, name = (wanted.kind, wanted.name) if wanted is not None else ("", "")
    moved = found.queue != state.job.queue and not reserved
    fixed = reserved and (kind != found.priority_kind or kind != "WorkloadPriorityClass")
    if not moved and (fixed or (found.priority_kind, found.priority_class) == (kind, name)):
        return ()
    if not _knows_priority(state):
        return ()
    queue = found.queue if reserved else state.job.queue
    body = patches.queue(found, state.job, queue, state.observation.priority)
    return (WorkloadWrite("patch", found.name, body),)


def _report(state: ObservedState, found: WorkloadView) -> tuple[WorkloadWrite, ...]:
    """Whether all ranks run, and how many pods the stages that are left will not need."""
    if not admission.is_admitted(state):
        return ()
    running = {pod.index for pod in state.gang if pod.phase in ("Running", "Succeeded")}
    ready = running | state.succeeded >= set(range(state.count))
    spare = found.count - workloads.count(state.job, state.stage)
    body = patches.status(found, ready, spare, state.time)
    return () if body is None else (WorkloadWrite("patch-status", found.name, body),)


def _events(before: Status, after: Status) -> tuple[Event, ...]:
    """An event for each step of the job through its queue."""
    found = []
    admitted, running = statuses.condition(after, ADMITTED), statuses.condition(after, "Running")
    known, ran = statuses.condition(before, ADMITTED), statuses.condition(before, "Running")
    if admitted is not None:
        is_new = known is None or known.reason != admitted.reason
        if admitted.status == "True" and not statuses.is_true(before, ADMITTED):
            found.append(Event("Normal", ADMITTED, admitted.message))
        if admitted.reason in (*WITHOUT_QUEUE, QUEUE_CHANGED) and is_new:
            found.append(Event("Warning", admitted.reason, admitted.message))
    if running is not None and (ran is None or ran.reason != running.reason):
        if running.reason == QUEUED:
            found.append(Event("Normal", QUEUED, running.message))
        elif running.reason == EVICTED:
            found.append(Event("Warning", EVICTED, running.message))
    return tuple(found)
