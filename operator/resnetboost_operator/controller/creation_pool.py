"""Creates the objects of gangs in the background, independently for each job.

Passes do not wait: each pass says what is missing, and the next one sees the result. Requests in flight are known only
here; a new process requests the same objects again and finds that they exist and are its own.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

import msgspec

from resnetboost_operator import status as statuses
from resnetboost_operator.controller import logs
from resnetboost_operator.controller.creation import Creation, Manifest, Obstacle
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.slots import Slots
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# Concurrent requests of all jobs. More are not faster: these keep an API server busy, and each has a connection with a
# TLS handshake and 300 KiB.
IN_FLIGHT = 64
# A handshake pays off only over several pods. A job starts with the least and gets one more per response.
LEAST_IN_FLIGHT, PODS_PER_CONNECTION = 12, 12
# A request without a response for this long waits for a hanging webhook or an overloaded API server. All such jobs
# together get no more than SLOW_IN_FLIGHT requests.
SLOW_SECONDS = 5.0
SLOW_IN_FLIGHT = 16
# A quota probably refuses again a second later; an object in deletion is gone within a pod's grace period.
REFUSED = Backoff(first_seconds=1.0, most_seconds=60.0)
BLOCKED = Backoff(first_seconds=1.0, most_seconds=8.0)

_Key = tuple[str, str]
_Build = Callable[[], Manifest]
_NO_PODS: Mapping[str, _Build] = {}


class CreationState(msgspec.Struct, frozen=True):
    """State of a gang's creation: `done` once nothing is missing; `obstacle` is why it does not proceed, or ''.

    `wait_seconds` is the time until the next try, None while requests are in flight.
    """

    done: bool
    obstacle: str = ""
    wait_seconds: float | None = None


class _Work:
    """The objects that one attempt of a job still needs, and the requests for them."""

    def __init__(self, job: JobRecord) -> None:
        self.job = job
        self.pending: dict[_Key, _Build] = {}
        self.tasks: dict[_Key, asyncio.Task[None]] = {}
        self.requested: dict[_Key, _Build] = {}
        self.trying: dict[_Key, _SlotGuard] = {}  # requests that the API server is processing
        self.created: set[_Key] = set()  # created objects that pods need; pods are in the store
        self.width = LEAST_IN_FLIGHT
        self.widest = LEAST_IN_FLIGHT
        self.obstacle = ""
        self.silence = ""
        self.paused = False
        self.invalid = False
        self.failures = 0
        self.not_before = float("-inf")
        self.answered_at = float("-inf")

    @property
    def attempt(self) -> tuple[str, int]:
        """Stage and attempt number of the pods."""
        return self.job.status.stage, statuses.pods_attempt(self.job.status)

    @property
    def reason(self) -> str:
        """The known or suspected reason why creation does not proceed."""
        return self.obstacle or self.silence

    @property
    def busy(self) -> bool:
        """True while objects are queued or requests in flight."""
        return bool(self.pending or self.tasks)


class CreationPool:
    """`still_wanted` is checked before each request; `changed` is called with a job's uid when it needs a pass."""

    def __init__(
        self,
        client: Client,
        store: Store,
        still_wanted: Callable[[JobRecord], bool],
        changed: Callable[[str], None],
    ) -> None:
        self._creation = Creation(client, store)
        self._still_wanted = still_wanted
        self._changed = changed
        self._slots = Slots(IN_FLIGHT, SLOW_IN_FLIGHT)
        self._works: dict[str, _Work] = {}
        self._cancelled: set[asyncio.Task[None]] = set()

    def ensure(
        self, job: JobRecord, manifests: Sequence[Manifest], pods: Mapping[str, _Build] = _NO_PODS
    ) -> CreationState:
        """Create exactly these objects, which the job's current attempt lacks, in this order of kinds, then these pods,
        each built just before its request.

        What the pods need (PodGroup, config map, service) is created one by one, then the pods in parallel. The first
        obstacle pauses creation: an incomplete gang is useless, and no pod may mount the config map of an earlier job.
        Objects of an earlier call that are not in this one, such as those of an earlier attempt, are not created.
        """
        work = self._works.get(job.uid)
        if work is not None and (
            not (manifests or pods) or work.attempt != (job.status.stage, statuses.pods_attempt(job.status))
        ):
            self.forget(job.uid)
            work = None
        if not (manifests or pods):
            return CreationState(done=True)
        work = work or self._works.setdefault(job.uid, _Work(job))
        work.job = job
        wanted: dict[_Key, _Build] = {_key(found): partial(_itself, found) for found in manifests}
        missing = {key: build for key, build in wanted.items() if key not in work.created}
        missing |= {("Pod", name): build for name, build in pods.items()}
        if not missing and not work.tasks:
            work.obstacle = ""
            return CreationState(done=True)
        wait = work.not_before - time.monotonic()
        if wait > 0:
            return CreationState(False, work.reason, wait)
        work.pending = {key: found for key, found in missing.items() if key not in work.tasks}
        work.paused = False
        count = sum(kind == "Pod" for kind, _ in (*work.pending, *work.tasks))
        work.widest = max(LEAST_IN_FLIGHT, min(IN_FLIGHT, count // PODS_PER_CONNECTION))
        self._begin(work)
        return CreationState(False, work.reason)

    def busy(self, uid: str) -> bool:
        """True while objects of that job are being created."""
        work = self._works.get(uid)
        return work is not None and work.busy

    def queued(self, uid: str) -> bool:
        """True while objects of that job wait for their request."""
        work = self._works.get(uid)
        return work is not None and bool(work.pending)

    def obstacle(self, uid: str) -> str:
        """Why that job's objects cannot be created, for messages; '' if they can."""
        work = self._works.get(uid)
        return work.reason if work is not None else ""

    def invalid(self, uid: str) -> bool:
        """True if one of that job's objects fails the API server's validation."""
        work = self._works.get(uid)
        return work is not None and work.paused and work.invalid

    def forget(self, uid: str) -> None:
        """Stop creating objects of that job and cancel its requests."""
        work = self._works.pop(uid, None)
        self._slots.mark(uid, slow=False)
        if work is not None:
            work.pending.clear()
            self._cancel(work, list(work.tasks))

    async def close(self) -> None:
        """Cancel all requests; the API server finishes what it has received."""
        for uid in list(self._works):
            self.forget(uid)
        await asyncio.gather(*self._cancelled, return_exceptions=True)

    def _begin(self, work: _Work) -> None:
        """Start as many requests as the job's width allows."""
        while work.pending and len(work.tasks) < work.width and not work.paused:
            if not self._still_wanted(work.job):
                work.pending.clear()
                return
            key = next(iter(work.pending))
            if work.tasks and any(kind != "Pod" for kind, _ in (key, *work.tasks)):
                return  # what the pods need first, one by one
            work.requested[key] = build = work.pending.pop(key)
            work.tasks[key] = asyncio.create_task(self._run(work, key, build))
            if not work.pending:
                self._changed(work.job.uid)  # more may be missing by now: old pods go one by one

    async def _run(self, work: _Work, key: _Key, build: _Build) -> None:
        with logs.about(work.job.label):
            obstacle = await self._create(work, key, build)
            if work.tasks.get(key) is not asyncio.current_task():
                return  # cancelled at the very end; another request replaces it
            del work.tasks[key], work.requested[key]
            if obstacle is not None:
                self._pause(work, obstacle)
            else:
                work.failures = 0
                work.created |= {key} if key[0] != "Pod" else set()
            self._begin(work)
            if not work.busy:
                work.obstacle = work.obstacle if work.paused else ""
                self._changed(work.job.uid)

    async def _create(self, work: _Work, key: _Key, build: _Build) -> Obstacle | None:
        try:
            return await self._creation.create(work.job, build(), _SlotGuard(self, self._slots, work, key))
        except ApiError as error:
            return Obstacle(str(error))
        except Exception as error:  # a bug must not block this object for ever
            logger.exception("%s %s is not created", *key)
            return Obstacle(f"{type(error).__name__} {error}")

    def _pause(self, work: _Work, obstacle: Obstacle) -> None:
        """Pause creation after an obstacle. Requests in flight continue, and their failures do not count again.

        A quota's message names the pod, so each one differs; the first is reported.
        """
        if work.paused and (work.invalid or not obstacle.invalid):
            return
        news, work.obstacle = obstacle.words != work.obstacle, obstacle.words
        work.invalid = obstacle.invalid
        if not work.paused:
            work.paused = True
            work.pending.clear()
            work.failures += 1
            wait = (BLOCKED if obstacle.passing else REFUSED).delay_seconds(work.failures)
            work.not_before = time.monotonic() + wait
        if news:
            logger.warning("not all objects can be created; trying again: %s", obstacle.words)
            self._changed(work.job.uid)

    def handle_timeout(self, work: _Work, key: _Key) -> None:
        """Handle a request without a response: mark the job slow, repeat its requests within that limit."""
        uid, now = work.job.uid, asyncio.get_running_loop().time()
        if self._works.get(uid) is not work or self._slots.is_slow(uid) or now < work.answered_at + SLOW_SECONDS:
            return  # one late response among others is no sign of a hang
        self._slots.mark(uid, slow=True)
        work.width = LEAST_IN_FLIGHT
        hanging = [found for found in work.tasks if found in work.trying]
        work.pending = {found: work.requested[found] for found in hanging} | work.pending
        self._cancel(work, hanging)
        kind, name = key
        work.silence = f"no answer for {SLOW_SECONDS:g} s to the creation of {kind} {name}; does a webhook hang?"
        with logs.about(work.job.label):
            logger.warning("%s", work.silence)
        self._begin(work)
        self._changed(uid)

    def handle_response(self, work: _Work, granted: bool) -> None:
        """Handle a response: the job is not slow, and a success widens its limit."""
        if self._works.get(work.job.uid) is work:
            self._slots.mark(work.job.uid, slow=False)
            work.answered_at = asyncio.get_running_loop().time()
            work.silence = ""
            work.width = min(work.widest, work.width + granted)

    def _cancel(self, work: _Work, keys: Sequence[_Key]) -> None:
        for key in keys:
            del work.requested[key]
            task = work.tasks.pop(key)
            task.cancel()
            self._cancelled.add(task)
            task.add_done_callback(self._cancelled.discard)


class _SlotGuard:
    """Holds a slot for each try of a request and reports how long the API server takes."""

    def __init__(self, pool: CreationPool, slots: Slots, work: _Work, key: _Key) -> None:
        self._pool = pool
        self._slots = slots
        self._work = work
        self._key = key

    async def __aenter__(self) -> None:
        self._slot = self._slots.of(self._work.job.uid)
        await self._slot.__aenter__()
        self._work.trying[self._key] = self
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._alarm = loop.call_later(SLOW_SECONDS, self._pool.handle_timeout, self._work, self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        in_time = asyncio.get_running_loop().time() - self._began < SLOW_SECONDS
        if self._work.trying.get(self._key) is self:  # unless a later try has replaced it
            del self._work.trying[self._key]
        if in_time and not isinstance(error, asyncio.CancelledError):
            self._pool.handle_response(self._work, granted=error is None)
        await self._slot.__aexit__(None, None, None)


def _itself(manifest: Manifest) -> Manifest:
    return manifest


def _key(manifest: Manifest) -> _Key:
    return manifest["kind"], manifest["metadata"]["name"]
