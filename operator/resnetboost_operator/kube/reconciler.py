"""One pass of one job: see what is, plan, write the status, then act; it decides nothing.

What it remembers only saves requests: a process that knows nothing does the same.
"""

import logging
import time

from msgspec.structs import replace

from resnetboost_operator import status as statuses
from resnetboost_operator.decision import Event, Plan, sooner
from resnetboost_operator.kube.apierrors import Conflict, Refused
from resnetboost_operator.kube.cluster import Cluster, JobGone
from resnetboost_operator.kube.jobs import JobRecord
from resnetboost_operator.kube.metrics import Metrics
from resnetboost_operator.kube.polling import Polling
from resnetboost_operator.kube.retry import Backoff
from resnetboost_operator.kube.store import Store
from resnetboost_operator.plan import plan
from resnetboost_operator.pods import PodView
from resnetboost_operator.status import Status
from resnetboost_operator.world import Observed

logger = logging.getLogger(__name__)

# Counts, progress and the words of conditions are written at most so often.
SOFT_WRITE_SECONDS = 5.0
# The watch brings the newer object at once; should it not, the pass is tried with what there is.
CONFLICT = Backoff(first_seconds=1.0, most_seconds=60.0)
# What a quota refuses now it will probably refuse in a second; what is going is gone within a pod's grace.
REFUSED = Backoff(first_seconds=1.0, most_seconds=60.0)
BLOCKED = Backoff(first_seconds=1.0, most_seconds=8.0)


class _Memory:
    """What the passes of one job know of each other."""

    def __init__(self) -> None:
        self.written_at = float("-inf")
        self.conflicts = 0
        self.status_refusal = ""
        self.refusal = ""
        self.invalid = False
        self.refusals = 0
        self.create_at = float("-inf")
        self.attempt = -1
        self.creating_since: float | None = None
        self.obsolete = ""

    def enter(self, attempt: int) -> None:
        """What was remembered of an earlier attempt says nothing about this one."""
        if attempt != self.attempt:
            self.attempt, self.creating_since = attempt, None
            self.let_in()

    def let_in(self) -> None:
        """Nothing is in the way of a creation any more."""
        self.refusal, self.invalid, self.refusals, self.create_at = "", False, 0, float("-inf")


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
        memory.enter(record.status.attempt)
        pods = self._store.pods_of(record)
        observed = Observed(
            pods=pods,
            progress=self._polling.progress(uid),
            since=self.since,
            nodes=self._store.nodes_of(pods),
            refusal=memory.refusal,
            invalid=memory.invalid,
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

    def forget(self, uid: str) -> None:
        """The job is gone, or only the garbage collector's business."""
        self._memories.pop(uid, None)
        self._problems.pop(uid, None)
        self._polling.forget(uid)

    async def _carry_out(
        self, record: JobRecord, memory: _Memory, pods: tuple[PodView, ...], decided: Plan
    ) -> float | None:
        """The order matters: what is decided is written before anything is done about it."""
        record, write_wait = await self._write(record, memory, decided)
        self._cluster.remove(record, decided.delete, pods)
        create_wait = await self._create(record, memory, decided)
        if create_wait is None:  # pods are woken for what is there
            await self._cluster.annotate(record, decided.annotate)
        if decided.expire:
            await self._cluster.expire(record)
        self._polling.follow(record.uid, decided.poll, decided.poll_seconds)
        return sooner(decided.wake_seconds, write_wait, create_wait, self._store.expected_seconds(record))

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

    async def _create(self, record: JobRecord, memory: _Memory, decided: Plan) -> float | None:
        """In how many seconds to go on with what could not be created."""
        if not decided.create:
            was_refused = bool(memory.refusal)
            memory.let_in()
            return 0.0 if was_refused else None  # for the plan to tell people
        now = time.monotonic()
        if now < memory.create_at:
            return memory.create_at - now
        if decided.obsolete and decided.obsolete != memory.obsolete:  # while pods are missing: later, nobody asks again
            await self._cluster.clean(record, decided.obsolete)
            memory.obsolete = decided.obsolete
        if any(manifest["kind"] == "Pod" for manifest in decided.create):
            memory.creating_since = memory.creating_since or now
        outcome = await self._cluster.create(record, decided.create)
        if outcome.created:
            memory.refusals = 0
        memory.invalid = outcome.invalid
        if outcome.obstacle:
            return self._kept_out(memory, outcome.obstacle, REFUSED if outcome.refusal else BLOCKED)
        memory.let_in()
        return None

    def _kept_out(self, memory: _Memory, obstacle: str, backoff: Backoff) -> float:
        """At once, for the plan to tell people; the objects are asked for again only after a while."""
        news = obstacle != memory.refusal
        memory.refusal = obstacle
        memory.refusals += 1
        wait = backoff.delay_seconds(memory.refusals)
        memory.create_at = time.monotonic() + wait
        if news:
            logger.warning("not all objects can be created; trying again: %s", obstacle)
        return 0.0 if news else wait

    def _complain(self, record: JobRecord) -> None:
        """Once for each problem."""
        if self._problems.get(record.uid) != record.problem:
            self._problems[record.uid] = record.problem
            logger.error("%s", record.problem)
            self._cluster.tell(record, (Event("Warning", "NotUnderstood", record.problem),))
