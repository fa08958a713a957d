"""One reconcile pass of a job: observe, plan, write the status, then execute the plan.

What is remembered between passes only saves requests; a new process reaches the same result.
"""

import logging
import time

from msgspec.structs import replace

from resnetboost_api.status import Status
from resnetboost_operator import status as statuses
from resnetboost_operator.controller.creation_pool import CreationState
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.kueue_lookups import KueueLookups
from resnetboost_operator.controller.launcher_links import LauncherLinks
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.progress_poller import ProgressPoller
from resnetboost_operator.controller.store import Store
from resnetboost_operator.controller.writer import Cluster, JobGone
from resnetboost_operator.kubeclient.errors import Conflict, Refused
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import Observation, Obstacle
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.faults import in_place
from resnetboost_operator.planning.plan import plan
from resnetboost_operator.scheduling.gang_scheduler import topology_key

logger = logging.getLogger(__name__)

# Minimum time between status writes that change only counts, progress or messages.
SOFT_WRITE_SECONDS = 5.0
# The watch delivers the newer object at once; if it does not, retry with the one in the cache.
CONFLICT = Backoff(first_seconds=1.0, most_seconds=60.0)
# While a gang is created, each of its pods triggers a pass, which would find nothing new. Once the last requests are on
# their way, it may: old pods go one by one, and make room for new ones.
CREATING_SECONDS, REFILLING_SECONDS = 5.0, 0.3


class _PassMemory:
    """State of one job that is kept between passes."""

    def __init__(self) -> None:
        self.written_at = float("-inf")
        self.conflicts = 0
        self.status_refusal = ""
        self.refusal = ""
        self.attempt = -1
        self.looked_at = float("-inf")
        self.looked_at_version = -1
        self.creating_since: float | None = None
        self.obsolete = ""

    def enter(self, attempt: int) -> None:
        """Forget what was remembered of the pods of an earlier attempt."""
        if attempt != self.attempt:
            self.attempt, self.creating_since, self.refusal = attempt, None, ""


class Reconciler:
    """Executes plans. `since` (unix seconds) is when this process began to lead."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        lookups: KueueLookups,
        polling: ProgressPoller,
        links: LauncherLinks,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._lookups = lookups
        self._polling = polling
        self._links = links
        self._metrics = metrics
        self._memories: dict[str, _PassMemory] = {}
        self._problems: dict[str, str] = {}
        self.since = 0.0

    async def reconcile(self, uid: str) -> float | None:
        """Run one pass. Returns the seconds until the next one is due without a change, or None."""
        record = self._store.jobs.get(uid)
        if record is None:
            return None
        if record.deleting:
            self.forget(uid)  # no new pods while the garbage collector deletes the old ones
            return None
        if record.job is None:
            self._complain(record)
            return None
        memory = self._memories.setdefault(uid, _PassMemory())
        if (debounce := self._debounce_seconds(record, memory)) > 0:
            return debounce
        memory.enter(statuses.pods_attempt(record.status))
        memory.refusal = self._cluster.obstacle(uid)
        workload = self._store.workload_of(record)
        found = await self._lookups.find(record.job, workload)
        pods = self._store.pods_of(record)
        observed = Observation(
            pods=pods,
            progress=self._polling.progress(uid),
            since=self.since,
            nodes=self._store.nodes_of(pods),
            obstacle=Obstacle(memory.refusal, self._cluster.invalid(uid)) if memory.refusal else None,
            tombstones=self._store.tombstones_of(record),
            unreachable=self._polling.unreachable(uid),
            capabilities=self._store.capabilities,
            workload=workload,
            pod_groups=self._store.pod_groups_of(record),
            priority=found.priority,
            flavors=found.flavors,
            labelled_nodes=self._store.labelled_nodes(topology_key(record.job)),
            gang_report=self._links.report(uid),
        )
        decided = plan(record.job, record.status, observed, time.time())
        try:
            wait = await self._execute(record, memory, pods, decided)
        except Conflict:
            memory.conflicts += 1
            return CONFLICT.delay_seconds(memory.conflicts)
        except JobGone:
            self._store.jobs.remove(uid)
            return None
        memory.conflicts = 0
        # Whatever a finished job's queue refers to, and may be gone, it needs no more.
        return wait if statuses.is_terminal(decided.status) else sooner(wait, found.retry_seconds)

    def _debounce_seconds(self, record: JobRecord, memory: _PassMemory) -> float:
        """Seconds to skip passes, because only more pods of a gang in creation are expected."""
        same = record.version == memory.looked_at_version and self._cluster.obstacle(record.uid) == memory.refusal
        if not same or not self._cluster.creates(record.uid):
            return 0.0
        spacing = CREATING_SECONDS if self._cluster.queues(record.uid) else REFILLING_SECONDS
        return memory.looked_at + spacing - time.monotonic()

    def forget(self, uid: str) -> None:
        """Forget a job that is deleted or being deleted."""
        self._memories.pop(uid, None)
        self._problems.pop(uid, None)
        self._polling.forget(uid)
        self._links.forget(uid)
        self._cluster.forget(uid)

    async def _execute(
        self, record: JobRecord, memory: _PassMemory, pods: tuple[PodView, ...], decided: Plan
    ) -> float | None:
        """Execute the plan. The status is written first: it records the decision before anything follows from it."""
        record, write_wait = await self._write(record, memory, decided)
        self._links.follow(record.uid, decided.launcher, in_place.recorded(record.status, decided))
        self._cluster.remove(record, decided.delete, pods)
        workload_wait = await self._cluster.write_workload(record, decided.workload)
        created = await self._create(record, memory, decided)
        if created.done:  # annotations wake pods, which need the other objects
            await self._cluster.annotate(record, decided.annotate)
        if decided.expire:
            await self._cluster.expire(record)
        self._polling.follow(record.uid, decided.poll, decided.poll_seconds)
        refusal = self._cluster.obstacle(record.uid)
        news, memory.refusal = refusal != memory.refusal, refusal
        memory.looked_at, memory.looked_at_version = time.monotonic(), record.version
        await self._cluster.clean_groups(record, decided.obsolete_groups)
        again = 0.0 if news else None  # so that the next plan reports it
        waits = (write_wait, workload_wait, created.wait_seconds, self._store.expectation_seconds(record))
        return sooner(decided.wake_seconds, again, *waits)

    async def _write(self, record: JobRecord, memory: _PassMemory, decided: Plan) -> tuple[JobRecord, float | None]:
        """Write the status if it changed. Returns the job, and the seconds until a postponed write is due.

        A postponed status contains no decision, so the rest of the plan does not wait for it.
        """
        before, after, now = record.status, decided.status, time.monotonic()
        if after == before:
            return record, None
        wait = memory.written_at + SOFT_WRITE_SECONDS - now
        if wait > 0 and not decided.events and not statuses.is_urgent(before, after):
            return record, wait
        written = await self._put(replace(record, status=after), memory)
        memory.written_at = now
        self._measure(before, after, memory)
        memory.enter(statuses.pods_attempt(after))
        self._cluster.record_events(written, decided.events)
        return written, None

    async def _put(self, record: JobRecord, memory: _PassMemory) -> JobRecord:
        """Write the status. Progress comes from a rank: if the API server refuses it, write the status without."""
        try:
            return await self._cluster.write_status(record)
        except Refused as error:
            if record.status.progress is None:
                raise
            if error.words != memory.status_refusal:
                logger.error("the status is refused; writing it without progress: %s", error.words)
            memory.status_refusal = error.words
        return await self._cluster.write_status(replace(record, status=replace(record.status, progress=None)))

    def _measure(self, before: Status, after: Status, memory: _PassMemory) -> None:
        if after.phase != before.phase:
            logger.info("phase %s, stage %s, attempt %d", after.phase, after.stage, after.attempt)
        if after.restarts > before.restarts:
            self._metrics.restarts.labels(after.attempts[-1].reason).inc()
        self._metrics.count_admission(before, after)
        if memory.creating_since is not None and after.attempt_start_time is not None:
            self._metrics.gang_creation_seconds.observe(time.monotonic() - memory.creating_since)
            memory.creating_since = None

    async def _create(self, record: JobRecord, memory: _PassMemory, decided: Plan) -> CreationState:
        """Start to create what is missing, without waiting for it."""
        # Only while pods are missing: a complete gang has no obsolete objects.
        if decided.creates and decided.obsolete and decided.obsolete != memory.obsolete:
            await self._cluster.clean(record, decided.obsolete)
            memory.obsolete = decided.obsolete
        if decided.pods is not None:
            memory.creating_since = memory.creating_since or time.monotonic()
        return self._cluster.create(record, decided.objects, decided.pods)

    def _complain(self, record: JobRecord) -> None:
        """Log and record a problem once."""
        if self._problems.get(record.uid) != record.problem:
            self._problems[record.uid] = record.problem
            logger.error("%s", record.problem)
            self._cluster.record_events(record, (Event("Warning", "NotUnderstood", record.problem),))
