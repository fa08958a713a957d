"""Creates the objects of gangs in the background, each job's apart from every other's; what they are is the plan's.

Nobody waits for a creation: each pass says what is missing, and the next one sees what came of it. What is under way is
known here alone, so a process that knows nothing asks again for what is there already, and finds that it is its own.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from resnetboost_operator.controller import logs
from resnetboost_operator.controller.creation import Creation, Manifest, Obstacle
from resnetboost_operator.controller.jobs import JobRecord
from resnetboost_operator.controller.slots import Slots
from resnetboost_operator.controller.store import Store
from resnetboost_operator.kubeclient.client import Client
from resnetboost_operator.kubeclient.errors import ApiError
from resnetboost_operator.kubeclient.retry import Backoff

logger = logging.getLogger(__name__)

# Requests at once, of all jobs together. By default an API server has 245 places for all service accounts: more than
# that only waits there, or is told 429.
IN_FLIGHT = 192
# Each needs a connection with a TLS handshake, which many pods must share: 100 pods run after 1.1 s when created by 16
# requests at once, after 1.6 s by 100. A job begins with the least and gets one more with each answer.
LEAST_IN_FLIGHT, PODS_PER_CONNECTION = 16, 6
# A request without an answer for so long is behind a webhook that hangs, or the API server has too much to do: either
# way such jobs get no more than these places, all of them together.
SLOW_SECONDS = 5.0
SLOW_IN_FLIGHT = 64
# What a quota refuses now it will probably refuse in a second; what is going is gone within a pod's grace.
REFUSED = Backoff(first_seconds=1.0, most_seconds=60.0)
BLOCKED = Backoff(first_seconds=1.0, most_seconds=8.0)

_Key = tuple[str, str]


class Standing(msgspec.Struct, frozen=True):
    """Where the creation of a gang is: `done` once nothing is missing; `obstacle`, what is in the way, or ''.

    `wait_seconds`: until it is worth a try again, None while it goes on by itself.
    """

    done: bool
    obstacle: str = ""
    wait_seconds: float | None = None


class _Work:
    """What one attempt of a job still needs."""

    def __init__(self, job: JobRecord) -> None:
        self.job = job
        self.pending: dict[_Key, Manifest] = {}
        self.tasks: dict[_Key, asyncio.Task[None]] = {}
        self.asked: dict[_Key, Manifest] = {}
        self.trying: dict[_Key, _Place] = {}  # those of them that the API server has at this moment
        self.there: set[_Key] = set()  # what pods refer to; of the pods the store knows
        self.width = LEAST_IN_FLIGHT
        self.widest = LEAST_IN_FLIGHT
        self.obstacle = ""
        self.silence = ""
        self.hindered = False
        self.invalid = False
        self.failures = 0
        self.not_before = float("-inf")
        self.answered_at = float("-inf")

    @property
    def attempt(self) -> tuple[str, int]:
        """Stage and number."""
        return self.job.status.stage, self.job.status.attempt

    @property
    def told(self) -> str:
        """What is in the way, or seems to be."""
        return self.obstacle or self.silence

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self.pending or self.tasks)


class Gangs:
    """`still_wanted` is asked before each object; `changed` is called with a job's uid when a pass has news to see."""

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

    def want(self, job: JobRecord, manifests: Sequence[Manifest]) -> Standing:
        """The current attempt of the job lacks exactly these objects: create them, in this order of kinds.

        What pods refer to is created one by one, then the pods in parallel. The first obstacle ends it for a while, for
        a gang is of no use before it is whole and no pod may find the config map of an earlier job. What an earlier
        call wanted and nobody wants any more, an earlier attempt's for instance, is not begun.
        """
        work = self._works.get(job.uid)
        if work is not None and (not manifests or work.attempt != (job.status.stage, job.status.attempt)):
            self.forget(job.uid)
            work = None
        if not manifests:
            return Standing(done=True)
        work = work or self._works.setdefault(job.uid, _Work(job))
        work.job = job
        missing = {key: found for found in manifests if (key := _key(found)) not in work.there}
        if not missing and not work.tasks:
            work.obstacle = ""
            return Standing(done=True)
        wait = work.not_before - time.monotonic()
        if wait > 0:
            return Standing(False, work.told, wait)
        work.pending = {key: found for key, found in missing.items() if key not in work.tasks}
        work.hindered = False
        pods = sum(kind == "Pod" for kind, _ in (*work.pending, *work.tasks))
        work.widest = max(LEAST_IN_FLIGHT, min(IN_FLIGHT, pods // PODS_PER_CONNECTION))
        self._begin(work)
        return Standing(False, work.told)

    def busy(self, uid: str) -> bool:
        """Whether objects of that job are being created."""
        work = self._works.get(uid)
        return work is not None and work.busy

    def obstacle(self, uid: str) -> str:
        """What is in the way of that job's objects, in words for people; '' if nothing is."""
        work = self._works.get(uid)
        return work.told if work is not None else ""

    def invalid(self, uid: str) -> bool:
        """Whether the API server will never take one of that job's objects."""
        work = self._works.get(uid)
        return work is not None and work.hindered and work.invalid

    def forget(self, uid: str) -> None:
        """Create nothing more for that job, whatever is under way."""
        work = self._works.pop(uid, None)
        self._slots.mark(uid, slow=False)
        if work is not None:
            work.pending.clear()
            self._cancel(work, list(work.tasks))

    async def close(self) -> None:
        """Wait for nothing any more; what was asked for goes on at the server's."""
        for uid in list(self._works):
            self.forget(uid)
        await asyncio.gather(*self._cancelled, return_exceptions=True)

    def _begin(self, work: _Work) -> None:
        """Begin as many requests as may be."""
        while work.pending and len(work.tasks) < work.width and not work.hindered:
            if not self._still_wanted(work.job):
                work.pending.clear()
                return
            key = next(iter(work.pending))
            if work.tasks and any(kind != "Pod" for kind, _ in (key, *work.tasks)):
                return  # what pods refer to goes first, one by one
            work.asked[key] = manifest = work.pending.pop(key)
            work.tasks[key] = asyncio.create_task(self._run(work, key, manifest))

    async def _run(self, work: _Work, key: _Key, manifest: Manifest) -> None:
        with logs.about(work.job.label):
            obstacle = await self._create(work, key, manifest)
            if work.tasks.get(key) is not asyncio.current_task():
                return  # called back at the very end; another one asks again
            del work.tasks[key], work.asked[key]
            if obstacle is not None:
                self._hinder(work, obstacle)
            else:
                work.failures = 0
                work.there |= {key} if key[0] != "Pod" else set()
            self._begin(work)
            if not work.busy:
                work.obstacle = work.obstacle if work.hindered else ""
                self._changed(work.job.uid)

    async def _create(self, work: _Work, key: _Key, manifest: Manifest) -> Obstacle | None:
        try:
            return await self._creation.create(work.job, manifest, _Place(self, self._slots, work, key))
        except ApiError as error:
            return Obstacle(str(error))
        except Exception as error:  # a bug must not leave the gang without this pod for ever
            logger.exception("%s %s is not created", *key)
            return Obstacle(f"{type(error).__name__} {error}")

    def _hinder(self, work: _Work, obstacle: Obstacle) -> None:
        """Try again only after a while. What is in flight is not called back, and does not count again.

        A quota's sentence names the pod, so it is another one for each of them: the first speaks for all.
        """
        if work.hindered and (work.invalid or not obstacle.invalid):
            return
        news, work.obstacle = obstacle.words != work.obstacle, obstacle.words
        work.invalid = obstacle.invalid
        if not work.hindered:
            work.hindered = True
            work.pending.clear()
            work.failures += 1
            wait = (BLOCKED if obstacle.passing else REFUSED).delay_seconds(work.failures)
            work.not_before = time.monotonic() + wait
        if news:
            logger.warning("not all objects can be created; trying again: %s", obstacle.words)
            self._changed(work.job.uid)

    def unanswered(self, work: _Work, key: _Key) -> None:
        """A request hangs: the job takes no place from jobs that get on any more, and asks again where slow ones do."""
        uid, now = work.job.uid, asyncio.get_running_loop().time()
        if self._works.get(uid) is not work or self._slots.is_slow(uid) or now < work.answered_at + SLOW_SECONDS:
            return  # one that is late among others that are answered says nothing
        self._slots.mark(uid, slow=True)
        work.width = LEAST_IN_FLIGHT
        hanging = [found for found in work.tasks if found in work.trying]
        work.pending = {found: work.asked[found] for found in hanging} | work.pending
        self._cancel(work, hanging)
        kind, name = key
        work.silence = f"no answer for {SLOW_SECONDS:g} s to the creation of {kind} {name}; does a webhook hang?"
        with logs.about(work.job.label):
            logger.warning("%s", work.silence)
        self._begin(work)
        self._changed(uid)

    def answered(self, work: _Work, granted: bool) -> None:
        """The API server gets on with the job; what it grants makes room for more."""
        if self._works.get(work.job.uid) is work:
            self._slots.mark(work.job.uid, slow=False)
            work.answered_at = asyncio.get_running_loop().time()
            work.silence = ""
            work.width = min(work.widest, work.width + granted)

    def _cancel(self, work: _Work, keys: Sequence[_Key]) -> None:
        for key in keys:
            del work.asked[key]
            task = work.tasks.pop(key)
            task.cancel()
            self._cancelled.add(task)
            task.add_done_callback(self._cancelled.discard)


class _Place:
    """A slot for each try of one request, and an eye on how long the API server takes over it."""

    def __init__(self, gangs: Gangs, slots: Slots, work: _Work, key: _Key) -> None:
        self._gangs = gangs
        self._slots = slots
        self._work = work
        self._key = key

    async def __aenter__(self) -> None:
        self._slot = self._slots.of(self._work.job.uid)
        await self._slot.__aenter__()
        self._work.trying[self._key] = self
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._alarm = loop.call_later(SLOW_SECONDS, self._gangs.unanswered, self._work, self._key)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        in_time = asyncio.get_running_loop().time() - self._began < SLOW_SECONDS
        if self._work.trying.get(self._key) is self:  # not that of a try which has taken its place
            del self._work.trying[self._key]
        if in_time and not isinstance(error, asyncio.CancelledError):
            self._gangs.answered(self._work, granted=error is None)
        await self._slot.__aexit__(None, None, None)


def _key(manifest: Manifest) -> _Key:
    return manifest["kind"], manifest["metadata"]["name"]
