"""One pass of one job: see what is, plan, write the status, then act; it decides nothing.

What it remembers only saves requests: a process that knows nothing does the same.
"""

import logging
import time

from msgspec.structs import replace

from resnetboost_operator import status as statuses
from resnetboost_operator.controller.cluster import Cluster, JobGone
from resnetboost_operator.controller.creation_pool import Standing
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.metrics import Metrics
from resnetboost_operator.controller.progress import Polling
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.errors import Conflict, Refused
from resnetboost_operator.kubeclient.retry import Backoff
from resnetboost_operator.observed.pods import PodView
from resnetboost_operator.observed.state import Observed
from resnetboost_operator.planning.actions import Event, Plan, sooner
from resnetboost_operator.planning.plan import plan
from resnetboost_operator.status import Status

logger = logging.getLogger(__name__)

# Counts, progress and the words of conditions are written at most so often.
SOFT_WRITE_SECONDS = 5.0
# The watch brings the newer object at once; should it not, the pass is tried with what there is.
CONFLICT = Backoff(first_seconds=1.0, most_seconds=60.0)
# While a gang is created each of its pods calls for a pass, which would find as much to do as the one before.
CREATING_SECONDS = 5.0


class _Memory:
    """What the passes of one job know of each other."""

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
        """What was remembered of an earlier attempt says nothing about this one."""
        if attempt != self.attempt:
            self.attempt, self.creating_since, self.refusal = attempt, None, ""


class Reconciler:
    """Carries plans out. `since` (unix seconds): nobody looked at the jobs before."""

    def __init__(self, store: Store, cluster: Cluster, polling: Polling, metrics: Metrics) -> None:
        self._store = store
        self._cluster = cluster
        self._polling = polling
        self._metrics = metrics
        self._memories: dict[str, _Memory] = {}
        self._problems: dict[str, str] = {}
        self.since = 0.0

    async def reconcile(self, uid: str) -> float | None:
        """One pass. Returns after how many seconds the next one is due even if nothing happens; None: never."""
        record = self._store.jobs.get(uid)
        if record is None:
            return None
        if record.deleting:
            self.forget(uid)  # a job that goes must not get new pods while the garbage collector takes the old ones
            return None
        if record.job is None:
            self._complain(record)
            return None
        memory = self._memories.setdefault(uid, _Memory())
        if (rest := self._seconds_to_rest(record, memory)) > 0:
            return rest
        memory.enter(record.status.attempt)
        memory.refusal = self._cluster.obstacle(uid)
        pods = self._store.pods_of(record)
        observed = Observed(
            pods=pods,
            progress=self._polling.progress(uid),
            since=self.since,
            nodes=self._store.nodes_of(pods),
            refusal=memory.refusal,
            invalid=self._cluster.invalid(uid),
            departed=self._store.departed_of(record),
            unreachable=self._polling.unreachable(uid),
        )
        decided = plan(record.job, record.status, observed, time.time())
        try:
            wait = await self._carry_out(record, memory, pods, decided)
        except Conflict:
            memory.conflicts += 1
            return CONFLICT.delay_seconds(memory.conflicts)
        except JobGone:
            self._store.jobs.remove(uid)
            return None
        memory.conflicts = 0
        return wait

    def _seconds_to_rest(self, record: JobRecord, memory: _Memory) -> float:
        """How long nothing but a few more pods is to be expected."""
        same = record.version == memory.looked_at_version and self._cluster.obstacle(record.uid) == memory.refusal
        if not same or not self._cluster.creates(record.uid):
            return 0.0
        return memory.looked_at + CREATING_SECONDS - time.monotonic()

    def forget(self, uid: str) -> None:
        """The job is gone, or only the garbage collector's business."""
        self._memories.pop(uid, None)
        self._problems.pop(uid, None)
        self._polling.forget(uid)
        self._cluster.forget(uid)

    async def _carry_out(
        self, record: JobRecord, memory: _Memory, pods: tuple[PodView, ...], decided: Plan
    ) -> float | None:
        """The order matters: what is decided is written before anything is done about it."""
        record, write_wait = await self._write(record, memory, decided)
        self._cluster.remove(record, decided.delete, pods)
        created = await self._create(record, memory, decided)
        if created.done:  # pods are woken for what is there
            await self._cluster.annotate(record, decided.annotate)
        if decided.expire:
            await self._cluster.expire(record)
        self._polling.follow(record.uid, decided.poll, decided.poll_seconds)
        news, memory.refusal = created.obstacle != memory.refusal, created.obstacle
        memory.looked_at, memory.looked_at_version = time.monotonic(), record.version
        tell = 0.0 if news else None  # for the plan to tell people
        return sooner(
            decided.wake_seconds, write_wait, created.wait_seconds, tell, self._store.expected_seconds(record)
        )

    async def _write(self, record: JobRecord, memory: _Memory, decided: Plan) -> tuple[JobRecord, float | None]:
        """The job as it is then, and in how many seconds a write that may wait is due.

        A status that may wait holds no decision, so what the plan wants done besides does not wait for it.
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
        memory.enter(after.attempt)
        self._cluster.tell(written, decided.events)
        return written, None

    async def _put(self, record: JobRecord, memory: _Memory) -> JobRecord:
        """Progress is a rank's to tell: should the API server refuse it, the job goes on without."""
        try:
            return await self._cluster.write_status(record)
        except Refused as error:
            if record.status.progress is None:
                raise
            if error.words != memory.status_refusal:
                logger.error("the status is refused, trying it without progress: %s", error.words)
            memory.status_refusal = error.words
        return await self._cluster.write_status(replace(record, status=replace(record.status, progress=None)))

    def _measure(self, before: Status, after: Status, memory: _Memory) -> None:
        if after.phase != before.phase:
            logger.info("phase %s, stage %s, attempt %d", after.phase, after.stage, after.attempt)
        if after.restarts > before.restarts:
            self._metrics.restarts.labels(after.attempts[-1].reason).inc()
        if memory.creating_since is not None and after.attempt_start_time is not None:
            self._metrics.gang_creation_seconds.observe(time.monotonic() - memory.creating_since)
            memory.creating_since = None

    async def _create(self, record: JobRecord, memory: _Memory, decided: Plan) -> Standing:
        """Hand over what is missing; nobody waits until it is there."""
        if decided.create and decided.obsolete and decided.obsolete != memory.obsolete:
            await self._cluster.clean(record, decided.obsolete)  # while pods are missing: later, nobody asks again
            memory.obsolete = decided.obsolete
        if any(manifest["kind"] == "Pod" for manifest in decided.create):
            memory.creating_since = memory.creating_since or time.monotonic()
        return self._cluster.create(record, decided.create)

    def _complain(self, record: JobRecord) -> None:
        """Once for each problem."""
        if self._problems.get(record.uid) != record.problem:
            self._problems[record.uid] = record.problem
            logger.error("%s", record.problem)
            self._cluster.tell(record, (Event("Warning", "NotUnderstood", record.problem),))
